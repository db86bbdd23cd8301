"""The engine for what reads or writes rows: files rewritten into a lake's Parquet, equality deletes as positions.

Values in, values out; nothing here knows a catalog or a plan. Spark only schedules: a batch of files a task, whose
plain Python (pyarrow, fastavro, DuckDB) reads and writes, so that every type, field id and annotation survives. The
session is started at the first batch that is not done yet; none is started when all of them are.

    from converters.spark.equality import resolve_equality
    from converters.spark.keys import EqualityDeletes, Subject
    from converters.spark.plan import DataFile, RewriteTask, Settings, Target
    from converters.spark.rewriter import Rewriter
    from converters.spark.session import Engine, SessionOptions

    options = SessionOptions.parse(master, conf, remote)           # or SessionOptions(session=the user's own)
    with Engine(options) as engine:
        target = Target(f"{data_path}bridge-{plan_id}", schema.fields, Settings(compression="zstd"))
        source = DataFile(path, "orc", record_count, size, constants={}, names=None)
        tasks = [RewriteTask("0", source, target, f"{plan_id}-0")]
        rewriter = Rewriter(engine, staging)
        written = rewriter.run(plan_id, tasks, watch)               # plan.WRITTEN: a row a written file
        # ... commit ...
        rewriter.clean(plan_id)

        deleted = resolve_equality(                                     # keys.DELETED: a row a position and delete file
            engine, staging, plan_id, all_fields,
            [Subject(source, sequence=1, spec=0, partition="")],
            [EqualityDeletes(DataFile(delete_path, "parquet", 3), ids=(1,), sequence=2, spec=0, everywhere=True)],
        )

What a caller has to know:
- `target.directory` and `staging` are reached by the driver and all executors; unfinished files of an earlier run of
  the same tasks are removed. On a cluster duckdb, pyarrow and fastavro must be installed with
  the executors' Python; our own code is sent to them. What they lack is one error (failures.py).
- `fields` of a target are the columns of the lake's table at the commit, with ids and initial defaults; a file is read
  by its ids, or by `names` if it has none. Identity partition values go into `constants` where the file may lack them.
- Without `deleted` the rows of a file are its source's rows in their order, cut into one or more files: position p of
  the source is row p - first_row of the file that it fell into. So deletes of older snapshots stay valid, and a
  rewritten file can serve history. A file whose rows are all of one partition lies in that partition's directory.
- A task of which no row lives writes no file. A file larger than the others is still one task.
- Running again with the same plan id and tasks reuses finished batches, after a look whether their files are there.
"""
