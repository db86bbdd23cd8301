"""A demonstration: an Iceberg table of three commits becomes a DuckLake table over the same files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog


def make_table(home: Path) -> Path:
    """An Iceberg table with two appends and a delete; its directory."""
    catalog = SqlCatalog("demo", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
    catalog.create_namespace("shop")
    orders = pa.table(
        {
            "id": pa.array(range(1000), pa.int64()),
            "item": [f"item {i % 7}" for i in range(1000)],
            "price": [i * 1.5 for i in range(1000)],
        }
    )
    table = catalog.create_table("shop.orders", schema=orders.schema)
    table.append(orders)
    table.append(orders.set_column(0, "id", pa.array(range(1000, 2000), pa.int64())))
    table.delete("id < 10")
    return home / "warehouse" / "shop" / "orders"


def bridge(*arguments: str) -> None:
    """Run a command and show it."""
    print("\n$ ducklake-bridge", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "bridge", *arguments], check=True)


ASK = """
from converters.ducklake.extensions import connect
lake = connect("ducklake")
lake.execute("ATTACH 'ducklake:{lake}' AS lake")
print(lake.sql("FROM lake.snapshots() SELECT snapshot_id, snapshot_time, commit_message"))
print(lake.sql("SELECT item, count(*) AS orders, max(price) AS dearest FROM lake.orders GROUP BY item ORDER BY item"))
print("before the delete:", lake.sql("SELECT count(*) FROM lake.orders AT (VERSION => 2)").fetchone()[0], "rows")
lake.execute("INSERT INTO lake.orders VALUES (5000, 'a new one', 1)")
print("after an insert in DuckDB:", lake.sql("SELECT count(*) FROM lake.orders").fetchone()[0], "rows")
"""


def main() -> None:
    """Make, plan, migrate, ask."""
    home = Path(sys.argv[1] if len(sys.argv) > 1 else "demo").absolute()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    source, lake = f"iceberg:{make_table(home)}", home / "lake.ducklake"
    bridge("plan", source, f"ducklake:{lake}")
    bridge("migrate", source, f"ducklake:{lake}")
    bridge("migrate", source, f"ducklake:{lake}")
    print("\n$ python -c 'ask the lake with DuckDB'", flush=True)
    subprocess.run([sys.executable, "-c", ASK.format(lake=lake)], check=True)


if __name__ == "__main__":
    main()
