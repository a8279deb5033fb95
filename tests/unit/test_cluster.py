"""cluster.toml: the examples read, and every mistake is named with its field."""

import json
from pathlib import Path

import pytest
from draws import times
from hypothesis import given
from hypothesis import strategies as st

from tuner.deploy.cluster import Cluster, parse_cluster, read_cluster
from tuner.deploy.preflight.facts import read_expected
from tuner.errors import BadInput, MalformedCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
H20 = (EXAMPLES / "cluster-h20-2x8-sglang.toml").read_text()
VLLM = (EXAMPLES / "cluster-h20-2x8-vllm.toml").read_text()


@pytest.mark.parametrize(
    ("name", "engine", "tp", "nodes"),
    [
        ("cluster-l40s-4x8", "sglang", 32, 4),
        ("cluster-h20-2x8-sglang", "sglang", 16, 2),
        ("cluster-h20-2x8-vllm", "vllm", 16, 2),
    ],
)
def test_examples_read(name, engine, tp, nodes):
    cluster = read_cluster(EXAMPLES / f"{name}.toml")
    assert (cluster.engine.name, cluster.parallel.tp, len(cluster.nodes)) == (engine, tp, nodes)
    assert cluster.gpus == tp
    assert all(node.gpus == 8 for node in cluster.nodes)


def test_fields_arrive():
    cluster = parse_cluster(H20)
    assert cluster.nodes[0].rdma == tuple(f"mlx5_{i}" for i in range(1, 9))
    assert parse_cluster(VLLM).nodes[0].rdma is None
    assert cluster.model.weight_bytes == 642 * 2**30
    assert cluster.model.context_length == 65536
    assert cluster.ports.serve == 8000
    assert cluster.engine.flags[:2] == ("--trust-remote-code", "--mem-fraction-static")


def test_environment_of_a_node_goes_before_the_cluster_s():
    text = H20 + '[nodes.environment]\nNCCL_DEBUG = "INFO"\nA = "node"\n'
    text = text.replace("[[nodes]]", '[environment]\nA = "all"\nB = "all"\n[[nodes]]', 1)
    expected = parse_cluster(text).expected()
    assert expected.nodes[0].environment == {"A": "all", "B": "all"}
    assert expected.nodes[1].environment == {"A": "node", "B": "all", "NCCL_DEBUG": "INFO"}


def test_only_vllm_uses_the_ray_port():
    assert "ray" not in parse_cluster(H20).expected().ports
    assert parse_cluster(VLLM).expected().ports["ray"] == 8379


def test_what_the_preflight_expects_survives_json(tmp_path):
    expected = parse_cluster(H20).expected()
    (tmp_path / "cluster.json").write_text(expected.to_json())
    assert read_expected(tmp_path / "cluster.json") == expected


MISTAKES = [
    ('name = "sglang"', 'name = "sgland"', "engine.name must be sglang or vllm", "'sglang'"),
    ("tp = 16", "tp = 15", "parallel.tp=15", "nearest is 16"),
    ("tp = 16", "tp = 0", "parallel.tp must be 1 to 4096", "nearest is 1"),
    ("tp = 16", 'tp = "16"', "parallel.tp must be a whole number", "'16'"),
    ("tp = 16", "tp = true", "parallel.tp must be a whole number", "True"),
    ("tp = 16", "tp = 16\nep = 3", "parallel.ep must divide tp=16", "nearest is 2"),
    ("tp = 16", "tp = 16\ndp = 5", "parallel.dp must divide tp=16", "nearest is 4"),
    ("tp = 16", "tp = 4\npp = 2", "parallel.tp=4 with dp=1 and pp=2 does not", "nearest is 8"),
    ("tp = 16", "tp = 4\npp = 3", "parallel.pp=3 does not divide the 16 GPUs", ""),
    ('"--trust-remote-code"', '"--pp-size=2"', "engine.flags holds --pp-size=2", "parallel.pp"),
    ("tp = 16", "tensor = 16", "parallel.tp is missing", ""),
    ("tp = 16", "tp = 16\neps = 2", "unknown field parallel.eps", "'ep'"),
    ("serve = 8000", "serve = 99999", "ports.serve must be 1 to 65535", "nearest is 65535"),
    ("serve = 8000", "server = 8000", "unknown field ports.server", "'serve'"),
    ("serve = 8000", "serve = 30000", "ports must differ", "serve 30000"),
    ('host = "10.63.65.207"', 'host = "10.63.65"', "nodes[0].host is no address", "10.63.65"),
    ('host = "10.63.65.207"', 'host = "10.63.65.208"', "nodes[1].host", "as nodes[0].host"),
    ('host = "10.63.65.207"', "", "nodes[0].host is missing", ""),
    ('host = "10.63.65.207"', 'hots = "10.63.65.207"', "nodes[0].host is missing", "'hots'"),
    ('"xgbe0"', '"a name; rm -rf /"', "nodes[0].interface cannot be", "rm -rf"),
    ('"h20-node01"', '"h20-node02"', "nodes[1].name", "as nodes[0].name"),
    ('["mlx5_1",', '["mlx5/1",', "nodes[0].rdma holds 'mlx5/1'", ""),
    ('["mlx5_1",', '["mlx5_2",', "nodes[0].rdma must name at least one device, each once", ""),
    ("context_length = 65536", "context = 65536", "context_length is missing", "'context'"),
    ("weight_gib = 642", 'weight_gib = "642"', "model.weight_gib must be a number", "'642'"),
    ('path = "/ssd1', 'path = "\\u0007/ssd1', "model.path cannot be", ""),
    ('container_path = "/mnt', 'container_path = "mnt', "must both start with /", "'mnt/models"),
    ("[model]", 'ray_flags = ["--block"]\n[model]', "ray_flags are for vllm", ""),
    ('"--trust-remote-code"', '"--tp=8"', "engine.flags holds --tp=8", "set parallel.tp"),
    ('"--trust-remote-code"', "8", "engine.flags must be a list of strings", ""),
    ("[engine]", "[engines]", "engine is missing", "'engines'"),
    ("[[nodes]]", "[[machines]]", "nodes is missing", ""),
    ("[model]", "[model]\n[environment]\n1A = 'x'\n[model]", "is not TOML", ""),
]


@pytest.mark.parametrize(("old", "new", "said", "near"), MISTAKES)
def test_a_mistake_is_named(old, new, said, near):
    assert old in H20
    count = -1 if old == "[[nodes]]" else 1
    with pytest.raises(MalformedCluster) as caught:
        parse_cluster(H20.replace(old, new, count))
    assert said in str(caught.value)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_rdma_must_be_auto_or_a_list():
    with pytest.raises(MalformedCluster, match=r"nodes\[0\]\.rdma .*did you mean 'auto'"):
        parse_cluster(VLLM.replace('rdma = "auto"', 'rdma = "atuo"', 1))
    with pytest.raises(MalformedCluster, match=r'write \["mlx5_1"\]'):
        parse_cluster(VLLM.replace('rdma = "auto"', 'rdma = "mlx5_1"', 1))


def test_environment_values_are_strings():
    with pytest.raises(MalformedCluster, match='environment.NCCL_IB_TIMEOUT .*write "22"'):
        parse_cluster(H20.replace("[ports]", "[environment]\nNCCL_IB_TIMEOUT = 22\n[ports]"))


@pytest.mark.parametrize("make", ["absent", "folder", "binary"])
def test_an_unreadable_file_is_bad_input(tmp_path, make):
    path = tmp_path / "cluster.toml"
    if make == "folder":
        path.mkdir()
    elif make == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MalformedCluster, match="cluster.toml"):
        read_cluster(path)


# Values of every TOML type at every place of a valid file.
_VALUES = st.one_of(
    st.integers(),
    st.booleans(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers() | st.text(max_size=5), max_size=3),
    st.none(),
)


@times(2)
@given(st.integers(0, 60), _VALUES, st.text(max_size=40))
def test_no_input_gives_a_traceback(line, value, noise):
    lines = VLLM.splitlines()
    at = line % len(lines)
    if " = " in lines[at]:
        written = noise if value is None else json.dumps(value)
        lines[at] = f"{lines[at].partition(' = ')[0]} = {written}"
    else:
        lines[at] = noise
    try:
        assert isinstance(parse_cluster("\n".join(lines)), Cluster)
    except BadInput as error:
        assert str(error)
