import com.sun.tools.attach.VirtualMachine;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.TreeMap;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Counts the requests of a running Kafka broker, without an option at its start: the JDK's attach mechanism starts the
 * broker's local JMX agent.
 *
 * <pre>java BrokerRequests.java PID</pre>
 *
 * Prints "ready", then answers each line of standard input with one line: "counts" with KIND=NUMBER of every kind of
 * request since the broker's start; "log DEBUG" and "log INFO" switch Kafka's own log of every request on and off.
 */
public final class BrokerRequests {
    private static final String REQUEST_LOGGER = "kafka.request.logger";

    private BrokerRequests() {}

    public static void main(String[] arguments) throws Exception {
        VirtualMachine machine = VirtualMachine.attach(arguments[0]);
        String address = machine.startLocalManagementAgent();
        machine.detach();
        try (JMXConnector connector = JMXConnectorFactory.connect(new JMXServiceURL(address));
                BufferedReader commands = new BufferedReader(new InputStreamReader(System.in))) {
            MBeanServerConnection broker = connector.getMBeanServerConnection();
            System.out.println("ready");
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                String[] words = line.split(" ");
                System.out.println(words[0].equals("log") ? setLogLevel(broker, words[1]) : counts(broker));
            }
        }
    }

    private static String counts(MBeanServerConnection broker) throws Exception {
        TreeMap<String, Long> counts = new TreeMap<>();
        ObjectName meters = new ObjectName("kafka.network:type=RequestMetrics,name=RequestsPerSec,*");
        for (ObjectName meter : broker.queryNames(meters, null)) {
            String kind = meter.getKeyProperty("request");
            // Every fetch is counted as "Fetch" and again as one of these.
            if (!kind.equals("FetchConsumer") && !kind.equals("FetchFollower")) {
                counts.merge(kind, (Long) broker.getAttribute(meter, "Count"), Long::sum);
            }
        }
        StringBuilder answer = new StringBuilder();
        counts.forEach((kind, count) -> answer.append(kind).append('=').append(count).append(' '));
        return answer.toString().strip();
    }

    private static Object setLogLevel(MBeanServerConnection broker, String level) throws Exception {
        Object[] values = {REQUEST_LOGGER, level};
        String[] types = {"java.lang.String", "java.lang.String"};
        return broker.invoke(new ObjectName("kafka:type=kafka.Log4jController"), "setLogLevel", values, types);
    }
}
