/* Produces records with the rd_kafka_t of a confluent-kafka Producer, and collects their delivery reports (ADR 230).

   The module is a plugin of librdkafka (plugin.library.paths): librdkafka tells `conf_init` of each producer that is
   made with it, and afterwards `on_acknowledgement` of each delivery report, in a thread of its own.

   The types are those of librdkafka's public header rdkafka.h, which the wheel of confluent-kafka does not bring. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef struct {
    int err;
    void *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} kafka_message;

typedef struct {
    int type;
    union {
        const char *text;
        struct {
            const void *data;
            size_t size;
        } bytes;
        void *pointer;
        char pad[64];
    } u;
} kafka_argument;

enum { KAFKA_TOPIC = 1, KAFKA_VALUE = 4, KAFKA_KEY = 5, KAFKA_HEADERS = 10 };
enum { KAFKA_FATAL = -150, KAFKA_FAIL = -196 };

/* librdkafka's functions, by address: whoever imports the module looks them up in the library that is loaded. */
typedef struct {
    void *(*produceva)(void *rk, const kafka_argument *arguments, size_t count);
    int (*error_code)(const void *error);
    int (*error_is_fatal)(const void *error);
    void (*error_destroy)(void *error);
    void *(*headers_new)(size_t count);
    int (*header_add)(void *headers, const char *name, ssize_t name_size, const void *value, ssize_t value_size);
    void (*headers_destroy)(void *headers);
    int (*conf_add_on_new)(void *conf, const char *name, void *on_new, void *opaque);
    int (*add_on_acknowledgement)(void *rk, const char *name, void *on_acknowledgement, void *opaque);
    int (*add_on_destroy)(void *rk, const char *name, void *on_destroy, void *opaque);
} kafka_functions;

/* Stands before each value that is passed to librdkafka, which neither copies nor frees it. */
typedef struct record {
    struct record *next;
    void *publish;
    int32_t error;
    int32_t partition;
    int64_t offset;      /* negative where Kafka does not tell it */
    Py_ssize_t size;     /* of the value */
    Py_ssize_t key_at;   /* in the value */
    Py_ssize_t key_size;
} record;

/* The reports of one rd_kafka_t. They are never freed, because librdkafka reports until the end of rd_kafka_destroy; a
   process has one such producer, and another one after each fatal error. */
typedef struct reports {
    const kafka_functions *kafka;
    void *rk;            /* NULL when it is being destroyed */
    record *newest;      /* a stack, which one thread empties */
    int is_claimed;
    struct reports *next;
} reports;

typedef struct {
    const char *name;
    Py_ssize_t name_size;
    const char *value;
    Py_ssize_t size;
} record_header;

/* The functions that the next producer uses; NULL until they are known. */
static const kafka_functions *librdkafka;
static reports *all_reports;

/* The record that this thread is producing. A record that librdkafka refuses may be reported before produceva returns
   (rdkafka_msg.c, "Unroll on_send by on_ack"). */
static __thread record *being_produced;

static int on_acknowledgement(void *rk, kafka_message *message, void *opaque) {
    reports *to = opaque;
    record *reported;
    (void)rk;
    if (message->opaque != NULL || message->payload == NULL)
        return 0; /* confluent-kafka produced it, and never without an opaque */
    reported = (record *)message->payload - 1;
    if (reported == being_produced)
        return 0;
    reported->error = message->err;
    reported->partition = message->partition;
    reported->offset = message->offset;
    reported->next = __atomic_load_n(&to->newest, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&to->newest, &reported->next, reported, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
    return 0;
}

static int on_destroy(void *rk, void *opaque) {
    (void)rk;
    __atomic_store_n(&((reports *)opaque)->rk, NULL, __ATOMIC_RELEASE);
    return 0;
}

static int on_new(void *rk, const void *conf, void *opaque, char *text, size_t size) {
    reports *added = calloc(1, sizeof(*added));
    (void)conf, (void)opaque, (void)text, (void)size;
    if (added == NULL)
        return 0; /* and nothing is produced this way */
    added->kafka = librdkafka;
    if (librdkafka->add_on_destroy(rk, "isotherm", on_destroy, added) ||
        librdkafka->add_on_acknowledgement(rk, "isotherm", on_acknowledgement, added))
        return 0;
    added->rk = rk;
    added->next = __atomic_load_n(&all_reports, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&all_reports, &added->next, added, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
    return 0;
}

__attribute__((visibility("default"))) int conf_init(void *conf, void **opaque, char *text, size_t size) {
    (void)opaque, (void)text, (void)size;
    return librdkafka == NULL ? KAFKA_FAIL : librdkafka->conf_add_on_new(conf, "isotherm", on_new, NULL);
}

/* Return the reports of a producer that was made with the plugin, the newest one at this address, to the first caller;
   NULL to the next ones, which would take reports of records that they do not hold, and for any other producer. */
static reports *claim_reports(const void *rk) {
    reports *found = __atomic_load_n(&all_reports, __ATOMIC_ACQUIRE);
    while (found != NULL && __atomic_load_n(&found->rk, __ATOMIC_ACQUIRE) != rk)
        found = found->next;
    return found == NULL || __atomic_exchange_n(&found->is_claimed, 1, __ATOMIC_ACQ_REL) ? NULL : found;
}

/* Return what was reported since the last call, oldest first. */
static record *take_reported(reports *of) {
    record *newest = __atomic_exchange_n(&of->newest, NULL, __ATOMIC_ACQUIRE), *oldest = NULL, *next;
    for (; newest != NULL; newest = next) {
        next = newest->next;
        newest->next = oldest;
        oldest = newest;
    }
    return oldest;
}

/* Produce one record; return 0 or the code that rd_kafka_producev would return. */
static int produce_record(reports *to, const char *topic, record *produced, const record_header *headers, int count) {
    const kafka_functions *kafka = to->kafka;
    char *value = (char *)(produced + 1);
    kafka_argument arguments[4];
    void *error, *added = NULL;
    int index, code = 0;
    void *rk = __atomic_load_n(&to->rk, __ATOMIC_ACQUIRE);
    if (rk == NULL)
        return KAFKA_FAIL;
    arguments[0].type = KAFKA_TOPIC;
    arguments[0].u.text = topic;
    arguments[1].type = KAFKA_VALUE;
    arguments[1].u.bytes.data = value;
    arguments[1].u.bytes.size = produced->size;
    arguments[2].type = KAFKA_KEY;
    arguments[2].u.bytes.data = value + produced->key_at;
    arguments[2].u.bytes.size = produced->key_size;
    if (count) {
        added = kafka->headers_new(count);
        for (index = 0; index < count; index++)
            kafka->header_add(added, headers[index].name, headers[index].name_size, headers[index].value,
                              headers[index].size);
        arguments[3].type = KAFKA_HEADERS;
        arguments[3].u.pointer = added;
    }
    being_produced = produced;
    error = kafka->produceva(rk, arguments, count ? 4 : 3);
    being_produced = NULL;
    if (error != NULL) {
        code = kafka->error_is_fatal(error) ? KAFKA_FATAL : kafka->error_code(error);
        kafka->error_destroy(error);
        if (added != NULL)
            kafka->headers_destroy(added);
    }
    return code;
}
