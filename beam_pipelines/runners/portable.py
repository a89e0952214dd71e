"""Any other engine with a job service, `--runner=PortableRunner --job_endpoint=HOST:PORT`."""

from beam_pipelines.runners.engine import Engine


class Portable(Engine):
    """A cluster behind a job service; of it nothing is known but that Beam submits to it."""

    runs_tensorflow = True
