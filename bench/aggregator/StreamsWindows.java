import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Computes the aggregator's windows with Kafka Streams: reads readings in Avro, and writes one aggregate in Avro for
 * each device, metric and closed window.
 *
 * <p>Readings are keyed by device, so one state holds all metrics of a device and no repartition topic is needed. The
 * state is in memory, or in RocksDB, with a changelog in Kafka; Spark's state is there with a checkpoint on disk.
 *
 * <p>Arguments: {@code name=value} for streams.* (properties of Kafka Streams), input, output, reading and aggregate
 * (files with Avro schemas), reading-id, aggregate-id, window-ms, lateness-ms, skew-ms, store ({@code IN_MEMORY} or
 * {@code ROCKS_DB}), emit ({@code suppress} or {@code on-window-close}). Prints {@code read N} twice a second, and exits
 * at the end of its standard input.
 */
public final class StreamsWindows {
    private static final int HEADER_BYTES = 5;
    private static final int PROGRESS_MS = 500;
    private static final LongAdder READ = new LongAdder();

    private StreamsWindows() {}

    public static void main(String[] words) throws IOException, InterruptedException {
        Properties given = new Properties();
        for (String word : words) {
            given.setProperty(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        Properties properties = new Properties();
        for (String name : given.stringPropertyNames()) {
            if (name.startsWith("streams.")) {
                properties.setProperty(name.substring("streams.".length()), given.getProperty(name));
            }
        }
        KafkaStreams streams = new KafkaStreams(topology(given), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
        streams.start();
        Thread progress = new Thread(StreamsWindows::printProgress);
        progress.setDaemon(true);
        progress.start();
        while (System.in.read() >= 0) {
            continue;
        }
        streams.close();
    }

    private static void printProgress() {
        try {
            while (true) {
                System.out.println("read " + READ.sum());
                Thread.sleep(PROGRESS_MS);
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static Topology topology(Properties given) throws IOException {
        long latenessMs = number(given, "lateness-ms");
        long skewMs = number(given, "skew-ms");
        Serde<Reading> readings = Serdes.serdeFrom(
                (topic, reading) -> {
                    throw new IllegalStateException("readings are not written");
                },
                new ReadingDeserializer(schema(given, "reading"), (int) number(given, "reading-id")));
        Serde<ArrayList<Statistics>> statistics =
                Serdes.serdeFrom((topic, all) -> Statistics.write(all), (topic, data) -> Statistics.read(data));
        AggregateWriter writer = new AggregateWriter(schema(given, "aggregate"), (int) number(given, "aggregate-id"));
        TimeWindows windows = TimeWindows.ofSizeAndGrace(
                Duration.ofMillis(number(given, "window-ms")), Duration.ofMillis(latenessMs));
        StreamsBuilder builder = new StreamsBuilder();
        TimeWindowedKStream<String, Reading> windowed = builder.stream(
                        given.getProperty("input"),
                        Consumed.with(Serdes.String(), readings)
                                .withTimestampExtractor((record, newest) -> ((Reading) record.value()).eventTimeMs()))
                .peek((device, reading) -> READ.increment())
                .filter((device, reading) -> reading.isOnTime(latenessMs, skewMs))
                .groupByKey(Grouped.with(Serdes.String(), readings))
                .windowedBy(windows);
        boolean emitsOnClose = given.getProperty("emit", "suppress").equals("on-window-close");
        if (emitsOnClose) {
            windowed = windowed.emitStrategy(EmitStrategy.onWindowClose());
        }
        KTable<Windowed<String>, ArrayList<Statistics>> aggregated = windowed.aggregate(
                ArrayList<Statistics>::new,
                (device, reading, metrics) -> added(metrics, reading),
                Materialized.<String, ArrayList<Statistics>, WindowStore<Bytes, byte[]>>with(
                                Serdes.String(), statistics)
                        .withStoreType(Materialized.StoreType.valueOf(given.getProperty("store", "IN_MEMORY")))
                        .withCachingEnabled());
        if (!emitsOnClose) {
            aggregated = aggregated.suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()));
        }
        aggregated
                .toStream()
                .flatMap((key, metrics) -> metrics.stream()
                        .map(one -> KeyValue.pair(key(key, one), writer.write(key, one)))
                        .collect(Collectors.toList()))
                .to(given.getProperty("output"), Produced.with(Serdes.String(), Serdes.ByteArray()));
        return builder.build();
    }

    private static long number(Properties given, String name) {
        return Long.parseLong(given.getProperty(name));
    }

    private static Schema schema(Properties given, String name) throws IOException {
        return new Schema.Parser().parse(Files.readString(Path.of(given.getProperty(name))));
    }

    private static String key(Windowed<String> key, Statistics statistics) {
        return Stream.of(key.key(), statistics.metric, key.window().start(), key.window().end())
                .map(String::valueOf)
                .collect(Collectors.joining("|"));
    }

    private static ArrayList<Statistics> added(ArrayList<Statistics> metrics, Reading reading) {
        for (Statistics statistics : metrics) {
            if (statistics.metric.equals(reading.metric())) {
                statistics.add(reading.value());
                return metrics;
            }
        }
        Statistics statistics = new Statistics(reading.metric());
        statistics.add(reading.value());
        metrics.add(statistics);
        return metrics;
    }

    /** The fields of a SensorReading that are used; times in epoch ms. */
    private record Reading(String metric, double value, long eventTimeMs, long ingestTimeMs) {
        boolean isOnTime(long latenessMs, long skewMs) {
            return Double.isFinite(value)
                    && eventTimeMs >= 0
                    && eventTimeMs <= ingestTimeMs + skewMs
                    && eventTimeMs >= ingestTimeMs - latenessMs;
        }
    }

    /** Decodes Avro after Confluent's header (magic byte and schema id). Each thread has its own decoder and record. */
    private static final class ReadingDeserializer implements Deserializer<Reading> {
        private final int id;
        private final ThreadLocal<GenericRecord> record = new ThreadLocal<>();
        private final ThreadLocal<BinaryDecoder> decoder = new ThreadLocal<>();
        private final GenericDatumReader<GenericRecord> reader;
        private final int metric;
        private final int value;
        private final int eventTime;
        private final int ingestTime;

        ReadingDeserializer(Schema schema, int id) {
            this.id = id;
            reader = new GenericDatumReader<>(schema);
            metric = schema.getField("metric").pos();
            value = schema.getField("value").pos();
            eventTime = schema.getField("event_time").pos();
            ingestTime = schema.getField("ingest_time").pos();
        }

        @Override
        public Reading deserialize(String topic, byte[] data) {
            ByteBuffer header = ByteBuffer.wrap(data, 0, HEADER_BYTES);
            if (header.get() != 0 || header.getInt() != id) {
                throw new IllegalArgumentException("a value of another schema");
            }
            try {
                int length = data.length - HEADER_BYTES;
                decoder.set(DecoderFactory.get().binaryDecoder(data, HEADER_BYTES, length, decoder.get()));
                GenericRecord read = reader.read(record.get(), decoder.get());
                record.set(read);
                return new Reading(
                        read.get(metric).toString(),
                        (Double) read.get(value),
                        (Long) read.get(eventTime),
                        (Long) read.get(ingestTime));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    /** The statistics of one metric in one window; the deviation by Welford's method, as in Spark. */
    private static final class Statistics {
        private static final int NUMBERS_BYTES = 6 * Long.BYTES;
        private final String metric;
        private long count;
        private double sum;
        private double least = Double.POSITIVE_INFINITY;
        private double greatest = Double.NEGATIVE_INFINITY;
        private double mean;
        private double squares;

        Statistics(String metric) {
            this.metric = metric;
        }

        void add(double value) {
            count++;
            sum += value;
            least = Math.min(least, value);
            greatest = Math.max(greatest, value);
            double distance = value - mean;
            mean += distance / count;
            squares += distance * (value - mean);
        }

        static byte[] write(List<Statistics> all) {
            byte[][] names = new byte[all.size()][];
            int bytes = 0;
            for (int i = 0; i < names.length; i++) {
                names[i] = all.get(i).metric.getBytes(StandardCharsets.UTF_8);
                bytes += Integer.BYTES + names[i].length + NUMBERS_BYTES;
            }
            ByteBuffer out = ByteBuffer.allocate(bytes);
            for (int i = 0; i < names.length; i++) {
                Statistics one = all.get(i);
                out.putInt(names[i].length).put(names[i]).putLong(one.count).putDouble(one.sum);
                out.putDouble(one.least).putDouble(one.greatest).putDouble(one.mean).putDouble(one.squares);
            }
            return out.array();
        }

        static ArrayList<Statistics> read(byte[] data) {
            ArrayList<Statistics> all = new ArrayList<>(1);
            ByteBuffer in = ByteBuffer.wrap(data);
            while (in.hasRemaining()) {
                byte[] name = new byte[in.getInt()];
                in.get(name);
                Statistics one = new Statistics(new String(name, StandardCharsets.UTF_8));
                one.count = in.getLong();
                one.sum = in.getDouble();
                one.least = in.getDouble();
                one.greatest = in.getDouble();
                one.mean = in.getDouble();
                one.squares = in.getDouble();
                all.add(one);
            }
            return all;
        }
    }

    /** Encodes TemperatureAggregate after Confluent's header. */
    private static final class AggregateWriter {
        private final Schema schema;
        private final GenericDatumWriter<GenericRecord> writer;
        private final byte[] header;

        AggregateWriter(Schema schema, int id) {
            this.schema = schema;
            writer = new GenericDatumWriter<>(schema);
            header = ByteBuffer.allocate(HEADER_BYTES).put((byte) 0).putInt(id).array();
        }

        byte[] write(Windowed<String> key, Statistics of) {
            GenericRecord record = new GenericData.Record(schema);
            record.put("device_id", key.key());
            record.put("metric", of.metric);
            record.put("window_start", key.window().start());
            record.put("window_end", key.window().end());
            record.put("count", of.count);
            record.put("sum", of.sum);
            record.put("mean", of.sum / of.count);
            record.put("min", of.least);
            record.put("max", of.greatest);
            record.put("stddev", Math.sqrt(of.squares / of.count));
            record.put("revision", System.currentTimeMillis());
            try {
                ByteArrayOutputStream out = new ByteArrayOutputStream();
                out.write(header);
                BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
                writer.write(record, encoder);
                return out.toByteArray();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
