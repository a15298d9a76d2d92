"""The alert rules, their bounds, and the overrides of bounds by device, home, region and model.

Pure: rules come from the settings, a file or records, device metadata and means of groups from the caller. This
package may import only `servicekit.settings`, for the models. It must not know readings, device states or Kafka.
"""
