"""The settings of topics, brokers and groups, by Kafka's names."""
