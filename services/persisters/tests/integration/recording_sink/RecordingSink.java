import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/** Appends what a sink sees of each record to a file: one line of JSON a record, with schemas. */
public class RecordingSink extends SinkConnector {
    private Map<String, String> properties;

    @Override
    public void start(Map<String, String> given) {
        properties = given;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return RecordingTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        return Collections.singletonList(properties);
    }

    @Override
    public void stop() {
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef().define("file", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "The file.");
    }

    @Override
    public String version() {
        return "1";
    }

    /** The task. */
    public static class RecordingTask extends SinkTask {
        private final ObjectMapper mapper = new ObjectMapper();
        private final JsonConverter withSchema = new JsonConverter();
        private final JsonConverter withoutSchema = new JsonConverter();
        private PrintWriter writer;

        @Override
        public void start(Map<String, String> properties) {
            withSchema.configure(Map.of("schemas.enable", "true"), false);
            withoutSchema.configure(Map.of("schemas.enable", "false"), false);
            try {
                writer = new PrintWriter(Files.newBufferedWriter(Path.of(properties.get("file")), StandardCharsets.UTF_8,
                    StandardOpenOption.CREATE, StandardOpenOption.APPEND));
            } catch (IOException error) {
                throw new ConnectException(error);
            }
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            for (SinkRecord record : records) {
                try {
                    writer.println(mapper.writeValueAsString(line(record)));
                } catch (IOException error) {
                    throw new ConnectException(error);
                }
            }
            writer.flush();
        }

        private ObjectNode line(SinkRecord record) throws IOException {
            ObjectNode line = mapper.createObjectNode();
            line.put("source", record.originalTopic());
            line.put("offset", record.originalKafkaOffset());
            line.put("topic", record.topic());
            line.set("key", mapper.readTree(bytes(record.topic(), record.keySchema(), record.key())));
            line.set("value", mapper.readTree(bytes(record.topic(), record.valueSchema(), record.value())));
            ArrayNode headers = line.putArray("headers");
            for (Header header : record.headers()) {
                headers.addArray().add(header.key()).add(String.valueOf(header.value()));
            }
            return line;
        }

        private byte[] bytes(String topic, Schema schema, Object value) {
            if (schema == null && value instanceof java.util.Date) {
                return Long.toString(((java.util.Date) value).getTime()).getBytes(StandardCharsets.UTF_8);
            }
            try {
                byte[] found = (schema == null ? withoutSchema : withSchema).fromConnectData(topic, schema, value);
                return found == null ? "null".getBytes(StandardCharsets.UTF_8) : found;
            } catch (DataException error) {
                // The transform made a value that does not fit its own schema: no converter could write it.
                return "\"unwritable\"".getBytes(StandardCharsets.UTF_8);
            }
        }

        @Override
        public void stop() {
            writer.close();
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
