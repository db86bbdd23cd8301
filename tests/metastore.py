"""A Hive metastore for tests, run as a process: the real one, from the jars that pyspark brings.

python metastore.py FOLDER      prints its port; ends with its standard input
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

LOG = """rootLogger.level=error
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
"""
OPENED = ("java.lang", "java.net", "java.util", "java.util.concurrent")


def start(folder: Path) -> int:
    """Starts it on a free port and waits until it answers."""
    jars = Path(pyspark.__file__).parent / "jars"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "log4j2.properties").write_text(LOG)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    port_of_gateway = launch_gateway(
        jarpath=str(next(jars.glob("py4j-*.jar"))),
        classpath=f"{folder / 'conf'}:{jars}/*",
        javaopts=[
            *(part for name in OPENED for part in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")),
            *("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            f"-Dderby.system.home={folder}",
            "-Djava.net.preferIPv4Stack=true",
        ],
        die_on_exit=True,
        redirect_stderr=(folder / "err").open("w"),
        redirect_stdout=(folder / "out").open("w"),
    )
    jvm = JavaGateway(gateway_parameters=GatewayParameters(port=port_of_gateway, auto_convert=True)).jvm
    conf = jvm.org.apache.hadoop.hive.conf.HiveConf()
    for key, value in {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:{folder}/metastore_db;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file://{folder}/warehouse",
        "datanucleus.connectionPoolingType": "NONE",
        "hive.metastore.uris": "",
    }.items():
        conf.set(key, value)
        jvm.java.lang.System.setProperty(key, value)
    jvm.org.apache.hadoop.hive.metastore.txn.TxnDbUtil.setConfValues(conf)
    serve = jvm.org.apache.hadoop.hive.metastore.HiveMetaStore.startMetaStore
    threading.Thread(target=serve, args=(port, None, conf), daemon=True).start()
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return port
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the metastore did not start")


if __name__ == "__main__":
    print(start(Path(sys.argv[1])), flush=True)
    sys.stdin.read()
