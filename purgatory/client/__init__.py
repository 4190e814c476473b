"""What all clients of a cluster here share: the settings of librdkafka, its errors, and whether a
cluster answers at all."""
