"""The settings of Kafka's brokers that count nowhere here: all are told, and some are changed.

Tools that compare a broker's settings, or set the number of its threads, find what they know.
"""

# The table's lines are as long as Kafka's names.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping

from purgatory.kafka.settings.setting import Setting

_KINDS = {
    kind: number
    for number, kind in enumerate(
        ["boolean", "string", "int", "short", "long", "double", "list", "class", "password"], 1
    )
}
_DOC = "As in Kafka; it counts nowhere here."

# Each line: the name, the type, the default.
_STATIC = """
add.partitions.to.txn.retry.backoff.max.ms int 100
add.partitions.to.txn.retry.backoff.ms int 20
alter.config.policy.class.name class null
alter.log.dirs.replication.quota.window.num int 11
alter.log.dirs.replication.quota.window.size.seconds int 1
broker.heartbeat.interval.ms int 2000
broker.session.timeout.ms int 9000
client.quota.callback.class class null
connection.failed.authentication.delay.ms int 100
connections.max.reauth.ms long 0
controlled.shutdown.enable boolean true
controller.quorum.append.linger.ms int 25
controller.quorum.auto.join.enable boolean false
controller.quorum.bootstrap.servers list
controller.quorum.election.backoff.max.ms int 1000
controller.quorum.election.timeout.ms int 1000
controller.quorum.fetch.max.bytes int 1048576
controller.quorum.fetch.snapshot.max.bytes int 1048576
controller.quorum.fetch.timeout.ms int 2000
controller.quorum.request.timeout.ms int 2000
controller.quorum.retry.backoff.ms int 20
controller.quota.window.num int 11
controller.quota.window.size.seconds int 1
controller.socket.timeout.ms int 30000
create.topic.policy.class.name class null
delegation.token.expiry.check.interval.ms long 3600000
delegation.token.expiry.time.ms long 86400000
delegation.token.max.lifetime.ms long 604800000
delegation.token.secret.key password null
delete.records.purgatory.purge.interval.requests int 1
early.start.listeners list null
fetch.max.bytes int 57671680
fetch.purgatory.purge.interval.requests int 1000
group.consumer.max.assignment.interval.ms int 15000
group.consumer.min.assignment.interval.ms int 0
group.coordinator.append.linger.ms int -1
group.coordinator.background.threads int 2
group.coordinator.rebalance.protocols list classic,consumer,streams
group.coordinator.threads int 4
group.share.max.assignment.interval.ms int 15000
group.share.min.assignment.interval.ms int 0
group.streams.max.assignment.interval.ms int 15000
group.streams.min.assignment.interval.ms int 0
initial.broker.registration.timeout.ms int 60000
kafka.metrics.polling.interval.secs int 10
kafka.metrics.reporters list
log.cleaner.enable boolean true
log.dir list /tmp/kafka-logs
log.dir.failure.timeout.ms long 30000
log.flush.offset.checkpoint.interval.ms int 60000
log.flush.scheduler.interval.ms long 9223372036854775807
log.flush.start.offset.checkpoint.interval.ms int 60000
log.retention.check.interval.ms long 300000
log.retention.hours int 168
log.retention.minutes int null
log.roll.hours int 168
log.roll.jitter.hours int 0
max.incremental.fetch.session.cache.slots int 1000
max.request.partition.size.limit int 2000
metadata.log.dir string null
metadata.log.max.record.bytes.between.snapshots long 20971520
metadata.log.max.snapshot.interval.ms long 3600000
metadata.log.segment.bytes int 1073741824
metadata.log.segment.ms long 604800000
metadata.max.idle.interval.ms int 500
metadata.max.retention.bytes long 104857600
metadata.max.retention.ms long 604800000
metrics.num.samples int 2
metrics.recording.level string INFO
metrics.sample.window.ms long 30000
num.replica.alter.log.dirs.threads int null
offset.metadata.max.bytes int 4096
offsets.commit.timeout.ms int 5000
offsets.load.buffer.size int 5242880
offsets.topic.compression.codec int 0
offsets.topic.segment.bytes int 104857600
producer.purgatory.purge.interval.requests int 1000
queued.max.request.bytes long -1
queued.max.requests int 500
quota.window.num int 11
quota.window.size.seconds int 1
remote.log.manager.copy.quota.window.num int 11
remote.log.manager.copy.quota.window.size.seconds int 1
remote.log.manager.fetch.quota.window.num int 11
remote.log.manager.fetch.quota.window.size.seconds int 1
remote.log.manager.task.interval.ms long 30000
remote.log.manager.thread.pool.size int 2
remote.log.metadata.custom.metadata.max.bytes int 128
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path string null
remote.log.metadata.manager.impl.prefix string rlmm.config.
remote.log.metadata.manager.listener.name string null
remote.log.reader.max.pending.tasks int 100
remote.log.storage.manager.class.name string null
remote.log.storage.manager.class.path string null
remote.log.storage.manager.impl.prefix string rsm.config.
remote.log.storage.system.enable boolean false
replica.fetch.backoff.ms int 1000
replica.fetch.max.bytes int 1048576
replica.fetch.min.bytes int 1
replica.fetch.response.max.bytes int 10485760
replica.fetch.wait.max.ms int 500
replica.high.watermark.checkpoint.interval.ms long 5000
replica.selector.class string null
replica.socket.receive.buffer.bytes int 65536
replica.socket.timeout.ms int 30000
replication.quota.window.num int 11
replication.quota.window.size.seconds int 1
request.timeout.ms int 30000
sasl.client.callback.handler.class class null
sasl.login.callback.handler.class class null
sasl.login.class class null
sasl.login.connect.timeout.ms int null
sasl.login.read.timeout.ms int null
sasl.login.retry.backoff.max.ms long 10000
sasl.login.retry.backoff.ms long 100
sasl.mechanism.controller.protocol string GSSAPI
sasl.oauthbearer.assertion.algorithm string RS256
sasl.oauthbearer.assertion.claim.aud string null
sasl.oauthbearer.assertion.claim.exp.seconds int 300
sasl.oauthbearer.assertion.claim.iss string null
sasl.oauthbearer.assertion.claim.jti.include boolean false
sasl.oauthbearer.assertion.claim.nbf.seconds int 60
sasl.oauthbearer.assertion.claim.sub string null
sasl.oauthbearer.assertion.file string null
sasl.oauthbearer.assertion.private.key.file string null
sasl.oauthbearer.assertion.private.key.passphrase password null
sasl.oauthbearer.assertion.template.file string null
sasl.oauthbearer.client.credentials.client.id string null
sasl.oauthbearer.client.credentials.client.secret password null
sasl.oauthbearer.clock.skew.seconds int 30
sasl.oauthbearer.expected.audience list
sasl.oauthbearer.expected.issuer string null
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
sasl.oauthbearer.jwks.endpoint.url string null
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope string null
sasl.oauthbearer.scope.claim.name string scope
sasl.oauthbearer.sub.claim.name string sub
sasl.oauthbearer.token.endpoint.url string null
sasl.server.callback.handler.class class null
sasl.server.max.receive.size int 524288
security.inter.broker.protocol string PLAINTEXT
security.providers string null
share.coordinator.append.linger.ms int -1
share.coordinator.load.buffer.size int 5242880
share.coordinator.snapshot.update.records.per.snapshot int 500
share.coordinator.state.topic.compression.codec int 0
share.coordinator.state.topic.segment.bytes int 104857600
share.coordinator.threads int 1
share.coordinator.write.timeout.ms int 5000
share.fetch.purgatory.purge.interval.requests int 1000
socket.connection.setup.timeout.max.ms long 30000
socket.connection.setup.timeout.ms long 10000
socket.listen.backlog.size int 50
socket.receive.buffer.bytes int 102400
socket.send.buffer.bytes int 102400
ssl.allow.dn.changes boolean false
ssl.allow.san.changes boolean false
ssl.principal.mapping.rules string DEFAULT
telemetry.max.bytes int 1048576
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000
transaction.state.log.load.buffer.size int 5242880
transaction.state.log.segment.bytes int 104857600
transaction.two.phase.commit.enable boolean false
"""

_OF_LISTENERS = """
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
sasl.enabled.mechanisms list GSSAPI
sasl.jaas.config password null
sasl.kerberos.kinit.cmd string /usr/bin/kinit
sasl.kerberos.principal.to.local.rules list DEFAULT
sasl.kerberos.service.name string null
sasl.kerberos.ticket.renew.jitter double 0.05
sasl.kerberos.ticket.renew.window.factor double 0.8
sasl.login.refresh.buffer.seconds short 300
sasl.login.refresh.min.period.seconds short 60
sasl.login.refresh.window.factor double 0.8
sasl.login.refresh.window.jitter double 0.05
sasl.mechanism.inter.broker.protocol string GSSAPI
ssl.cipher.suites list
ssl.client.auth string none
ssl.enabled.protocols list TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm string https
ssl.engine.factory.class class null
ssl.key.password password null
ssl.keymanager.algorithm string SunX509
ssl.keystore.certificate.chain password null
ssl.keystore.key password null
ssl.keystore.location string null
ssl.keystore.password password null
ssl.keystore.type string JKS
ssl.protocol string TLSv1.3
ssl.provider string null
ssl.secure.random.implementation string null
ssl.trustmanager.algorithm string PKIX
ssl.truststore.certificates password null
ssl.truststore.location string null
ssl.truststore.password password null
ssl.truststore.type string JKS
"""

_DYNAMIC = """
background.threads int 10
config.providers list
cordoned.log.dirs list
follower.fetch.last.tiered.offset.enable boolean false
group.consumer.assignment.interval.ms int 1000
group.coordinator.cached.buffer.max.bytes int 1048588
group.share.assignment.interval.ms int 1000
group.streams.assignment.interval.ms int 1000
log.cleaner.backoff.ms long 15000
log.cleaner.dedupe.buffer.size long 134217728
log.cleaner.io.buffer.load.factor double 0.9
log.cleaner.io.buffer.size int 524288
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308
log.cleaner.threads int 1
max.connection.creation.rate int 2147483647
max.connections int 2147483647
max.connections.per.ip int 2147483647
max.connections.per.ip.overrides string
metric.reporters list org.apache.kafka.common.metrics.JmxReporter
num.io.threads int 8
num.network.threads int 3
num.recovery.threads.per.data.dir int 2
num.replica.fetchers int 1
producer.id.expiration.ms int 86400000
remote.fetch.max.wait.ms int 500
remote.list.offsets.request.timeout.ms long 30000
remote.log.index.file.cache.total.size.bytes long 1073741824
remote.log.manager.copier.thread.pool.size int 10
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807
remote.log.manager.expiration.thread.pool.size int 10
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807
remote.log.manager.follower.thread.pool.size int 2
remote.log.reader.threads int 10
share.coordinator.cached.buffer.max.bytes int 1048588
transaction.partition.verification.enable boolean true
"""


def _settings(lines: str, fixed: bool = False) -> Iterator[tuple[str, Setting]]:
    for line in lines.strip().splitlines():
        name, kind, *default = line.split(" ", 2)
        value = default[0] if default else ""
        known = None if value == "null" else value
        yield name, Setting(known, _KINDS[kind], name, _DOC, fixed=fixed)


UNUSED_STATIC: Mapping[str, Setting] = dict(_settings(_STATIC, fixed=True))
"""Those that Kafka doesn't change while a broker runs."""

UNUSED_OF_LISTENERS: Mapping[str, Setting] = dict(_settings(_OF_LISTENERS))
"""Those that Kafka changes for one listener alone, by its name before theirs."""

UNUSED_DYNAMIC: Mapping[str, Setting] = dict(_settings(_DYNAMIC))
"""Those that can be changed."""

THREADS = frozenset(
    (
        "background.threads",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    )
)
"""Numbers that change to the half or the double at most, as in Kafka."""
