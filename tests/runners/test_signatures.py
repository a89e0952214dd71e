"""Tests that the cached signatures of DoFn methods equal the signatures that Beam computes."""

import inspect
import types

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, StandardOptions
from apache_beam.transforms import core, userstate
from apache_beam.transforms.userstate import BagStateSpec

from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.runners.signatures import remember_signatures


class Stateful(beam.DoFn):
    SEEN = BagStateSpec("seen", beam.coders.BytesCoder())

    def process(self, element, window=beam.DoFn.WindowParam, seen=beam.DoFn.StateParam(SEEN), *others, scale: float = 1.0):
        yield element


def test_cached_signatures_equal_those_of_the_methods():
    remember_signatures()
    for _ in range(2):
        for dofn in (Stateful(), beam.DoFn(), core.CallableWrapperDoFn(lambda element, by=2: [element * by]), core.CallableWrapperDoFn(str.split)):
            methods = [getattr(dofn, name) for name in dir(dofn)]
            methods = [method for method in methods if isinstance(method, types.MethodType)]
            assert len(methods) > 10
            assert [core.get_signature(method) for method in methods] == [inspect.signature(method) for method in methods]
        assert userstate.get_dofn_specs(Stateful()) == ({Stateful.SEEN}, set()) and userstate.get_dofn_specs(beam.DoFn()) == (set(), set())
        plain, stateful = core.CallableWrapperDoFn(len), core.CallableWrapperDoFn(Stateful().process)
        assert userstate.get_dofn_specs(plain) == (set(), set()) and userstate.get_dofn_specs(stateful) == ({Stateful.SEEN}, set())


def test_views_of_pipeline_options_share_values():
    options = parse_pipeline_options(["--job_name=made"])
    options.view_as(GoogleCloudOptions).job_name = "another"
    options.view_as(StandardOptions).view_as(GoogleCloudOptions).project = "mine"
    cloud = options.view_as(GoogleCloudOptions)
    assert (cloud.job_name, cloud.project) == ("another", "mine")
    assert options.get_all_options()["job_name"] == "another"
