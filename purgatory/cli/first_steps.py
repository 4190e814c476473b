"""What `purgatory` alone tells: what to try first."""

FIRST_STEPS = """\
See what waits inside of Kafka, and why. Try, one after the other:
  purgatory wheel                                    a timing wheel turns, step by step
  purgatory simulate slow-follower --trace my-trace  requests wait for a follower that stalls
  purgatory waits my-trace                           how long they waited, and which the longest
  purgatory cluster                                  brokers on this machine, for any Kafka client
purgatory --help lists all commands, purgatory COMMAND --help the options of one.\
"""
