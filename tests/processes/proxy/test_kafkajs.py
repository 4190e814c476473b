"""kafkajs, the client of Node, comes to a cluster through a proxy.

npm installs it once into ``build``; where there is none, or the registry can't be reached, this is
skipped, but fails in CI.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from purgatory.cluster import ThreadedCluster
from purgatory.proxy import ThreadedProxy
from tests.databases.shared.servers import program
from tests.wire.cluster.confluent_client import ConfluentClient

VERSION = "2.2.4"
FOLDER = Path(__file__).parents[3] / "build" / f"kafkajs-{VERSION}"
COUNT = 20

SCRIPT = """
const { Kafka, logLevel } = require("kafkajs");
const [brokers, topic, count] = process.argv.slice(2);
const kafka = new Kafka({
  clientId: topic, brokers: brokers.split(","), logLevel: logLevel.NOTHING,
});

async function main() {
  const producer = kafka.producer();
  await producer.connect();
  for (let number = 0; number < Number(count); number += 1) {
    await producer.send({ topic, messages: [{ value: String(number), partition: 0 }] });
  }
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: topic });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const values = [];
  await new Promise((resolve, reject) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        values.push(message.value.toString());
        if (values.length === Number(count)) resolve();
      },
    }).catch(reject);
  });
  await consumer.disconnect();
  console.log(JSON.stringify(values));
}

main().catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def kafkajs() -> Sequence[str]:
    """A command that sends and reads by kafkajs."""
    node, npm = program("node", "nodejs"), program("npm", "npm")
    if not (FOLDER / "node_modules" / "kafkajs" / "package.json").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
        installed = subprocess.run(
            [*command, "--prefix", str(FOLDER), f"kafkajs@{VERSION}"],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if installed.returncode:
            reason = f"npm can't install kafkajs: {installed.stderr[-500:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
    script = FOLDER / "send_and_read.js"
    script.write_text(SCRIPT, encoding="utf-8")
    return [node, str(script)]


@pytest.mark.slow
def test_kafkajs_sends_and_reads_despite_faults(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str, kafkajs: Sequence[str]
) -> None:
    with proxy.fault.return_error(
        api="Produce", error="NOT_LEADER_OR_FOLLOWER", client_id=topic, count=2
    ) as fault:
        done = subprocess.run(
            [*kafkajs, proxy.bootstrap_servers, topic, str(COUNT)],
            env={**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert fault.uses == 2
    values = [str(number) for number in range(COUNT)]
    assert json.loads(done.stdout) == values
    read = ConfluentClient(cluster.bootstrap_servers).read(topic, 0, COUNT)
    assert [record.value.decode() for record in read] == values
