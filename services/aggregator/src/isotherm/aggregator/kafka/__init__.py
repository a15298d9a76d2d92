"""What the driver asks Kafka directly, beside Spark: topics, offsets, timestamps, and the first unread records.

It also finds the start position of a new checkpoint from these answers, and sends the records of small batches. This
package may import `settings`, `watermark` and `offsets`. It must not know Spark or the checkpoint.
"""
