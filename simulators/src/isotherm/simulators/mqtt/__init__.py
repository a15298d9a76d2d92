"""A fleet of thermostats that publish temperature and brightness over MQTT."""
