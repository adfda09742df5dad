"""A real training loop on the CPU, recorded and compared with the projection of its job."""

import json

import pytest

import projector as pj
from projector.cli.main import run
from projector.measure.devices import cpu_name
from projector.validate.traces.result import TraceComparison

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

LAYERS, WIDTH, INNER, HEADS, KEYS, WORDS, TOKENS = 2, 64, 192, 4, 2, 512, 96
MICROBATCHES, STEPS = 2, 2

JOB = {
    "model": {
        "name": "small Llama",
        "num_layers": LAYERS,
        "hidden_size": WIDTH,
        "ffn_hidden_size": INNER,
        "num_attention_heads": HEADS,
        "num_query_groups": KEYS,
        "vocab_size": WORDS,
        "max_position_embeddings": TOKENS,
    },
    "parallelism": {},
    "training": {
        "micro_batch_size": 1,
        "global_batch_size": MICROBATCHES,
        "seq_length": TOKENS,
        "precision": "fp32",
    },
    # A GPU by its numbers: what is compared is which operations there are, and how often.
    "cluster": {
        "device": {"extends": "a100", "name": cpu_name()},
        "nodes": 1,
        "gpus_per_node": 1,
    },
}


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (x * scale)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = WIDTH // HEADS
        self.q_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KEYS * self.d, bias=False) for _ in range(2))

    def rotate(self, x):
        half = x.chunk(2, -1)
        return x * 0.5 + torch.cat((-half[1], half[0]), -1) * 0.5

    def forward(self, x):
        q, k, v = (
            proj(x).view(1, TOKENS, -1, self.d).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (each.repeat_interleave(HEADS // KEYS, 1) for each in (self.rotate(k), v))
        out = functional.scaled_dot_product_attention(self.rotate(q), k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(1, TOKENS, WIDTH))


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn, self.mlp = Attention(), Feed()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.lm_head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A recorded run of the job, whose operators stand for kernels."""
    folder = tmp_path_factory.mktemp("traces")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        model = Llama()
        optimizer = torch.optim.AdamW(model.parameters())
        with pj.record_trace(folder, warmup=1, active=STEPS) as recorder:
            for _ in range(1 + STEPS):
                for _ in range(MICROBATCHES):
                    ids = torch.randint(0, WORDS, (1, TOKENS))
                    functional.cross_entropy(model(ids)[0], ids[0]).backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
    finally:
        torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="module")
def found(traces) -> TraceComparison:
    return pj.compare_trace(pj.load_trace(traces), JOB)


def test_nearly_everything_is_matched(found):
    assert found.iterations == STEPS
    assert found.matched_first == 1.0
    # Gradients that several micro-batches add up are no operation of the models.
    assert found.matched_second > 0.95


def test_products_run_as_often_and_on_what_the_job_says(found):
    products = [each for each in found.operations if each.kind in ("gemm", "attention")]
    # Five linear layers with three products each, and attention both ways.
    assert len(products) == 5 * 3 + 2
    for each in products:
        factors = {factor.name: factor.value for factor in each.factors}
        assert factors["count"] == pytest.approx(1.0), each
        assert factors["shape"] == pytest.approx(1.0), each


def test_the_terms_of_the_step_add_up(found):
    step = dict(found.step)
    total = step.pop("total")
    assert sum(pair.measured_s for pair in step.values()) == pytest.approx(total.measured_s)
    assert step["optimizer"].measured_s > 0.0


def test_the_run_becomes_tables_that_calibrate_reads(traces, tmp_path, capsys):
    job = tmp_path / "job.json"
    job.write_text(json.dumps(JOB))
    out = tmp_path / "tables"
    arguments = ["trace", "compare", "--config", str(job), str(traces), "--tables", str(out)]
    assert run([*arguments, "--json", "--quiet"]) == 0
    step_ms = json.loads(capsys.readouterr().out)["step"]["total"]["measured_ms"]
    lines = (out / "runs.csv").read_text().splitlines()
    assert lines[0] == "job,measured_ms"
    assert float(lines[1].rpartition(",")[2]) == pytest.approx(step_ms, rel=1e-5)
    assert run(["validate", "gemm_measured", str(out / "gemm_measured.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total_rows"] >= 10
