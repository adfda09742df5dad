import pytest

from projector.config import resources
from projector.config.model_file import load_model
from projector.first_order.equations import count_parameters, dense_parameters
from reference import parameters as reference

MODELS = [name for name in resources.shipped("models") if load_model(name).diffusion is None]


@pytest.mark.parametrize("name", MODELS)
def test_counts_are_those_of_every_module(name):
    model = load_model(name)
    counts = count_parameters(model)
    assert counts.total == reference.parameters_total(model)
    assert counts.active == reference.parameters_active(model)
    experts = 0 if model.moe is None else reference.expert_parameters(model)
    held = sum(model.moe_layers) * (model.moe.num_experts if model.moe else 0)
    assert counts.experts == held * experts


def test_the_formula_is_exact_for_the_model_it_assumes():
    model = load_model("gpt3_175b")
    formula = dense_parameters(model.hidden_size, model.vocab_size, model.num_layers)
    positions = model.max_position_embeddings * model.hidden_size
    assert formula + positions == count_parameters(model).total
