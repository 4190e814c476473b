"""kafkajs, the client of Node, comes to a cluster through a proxy.

It is got by npm; where there is none, or the registry can't be reached, this is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from purgatory.cluster import ThreadedCluster
from purgatory.proxy import ThreadedProxy
from tests.cluster.confluent_client import ConfluentClient

NODE, NPM = shutil.which("node"), shutil.which("npm")
VERSION = "2.2.4"
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
def kafkajs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kafkajs, and a script that sends and reads by it."""
    if NODE is None or NPM is None:
        pytest.skip("there is no node with npm here")
    folder = tmp_path_factory.mktemp("kafkajs")
    command = [NPM, "install", "--no-audit", "--no-fund", "--prefix", str(folder)]
    installed = subprocess.run(
        [*command, f"kafkajs@{VERSION}"], capture_output=True, text=True, timeout=240, check=False
    )
    if installed.returncode:
        pytest.skip(f"npm can't install kafkajs: {installed.stderr[-500:]}")
    (folder / "send_and_read.js").write_text(SCRIPT, encoding="utf-8")
    return folder


def test_kafkajs_sends_and_reads_in_spite_of_faults(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str, kafkajs: Path
) -> None:
    assert NODE is not None
    with proxy.fault.return_error(
        api="Produce", error="NOT_LEADER_OR_FOLLOWER", client_id=topic, count=2
    ) as fault:
        done = subprocess.run(
            [NODE, "send_and_read.js", proxy.bootstrap_servers, topic, str(COUNT)],
            cwd=kafkajs,
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
