"""Every shipped architecture parses, and its size is the published one to the digit."""

import pytest
import yaml

from projector.config.model import ModelConfig
from projector.config.resources import data_dir, find, index, normalise, shipped
from projector.config.yaml_file import read_yaml
from reference.parameters import parameters_active, parameters_total

LLAMA = "Hugging Face model card and safetensors index"
MEGATRON = "Megatron-LM, Narayanan et al. 2021 and Korthikanti et al. 2022, printed size"
MPT = "llm-foundry scripts/train/benchmarking/README.md, NumParams at sequence 2048"

PARAMETERS = [
    # name, total, active, source; where that prints a rounded figure, this is what it rounds
    ("llama2_7b", 6_738_415_616, 6_738_415_616, LLAMA),
    ("llama2_13b", 13_015_864_320, 13_015_864_320, LLAMA),
    ("llama3_8b", 8_030_261_248, 8_030_261_248, LLAMA),
    ("llama3.1_8b", 8_030_261_248, 8_030_261_248, LLAMA),
    ("llama3.1_405b", 405_853_388_800, 405_853_388_800, LLAMA),
    ("mixtral_8x7b", 46_702_792_704, 12_879_925_248, LLAMA),
    ("mixtral_8x22b", 140_630_071_296, 39_161_468_928, f"{LLAMA}: v0.3, 39.15B active"),
    ("qwen2.5_7b", 7_615_616_512, 7_615_616_512, LLAMA),
    ("qwen2.5_14b", 14_770_033_664, 14_770_033_664, LLAMA),
    ("qwen2.5_72b", 72_706_203_648, 72_706_203_648, LLAMA),
    ("qwen3_8b", 8_190_735_360, 8_190_735_360, LLAMA),
    ("qwen3_32b", 32_762_123_264, 32_762_123_264, LLAMA),
    ("qwen3_30b_a3b", 30_532_122_624, 3_353_032_704, f"{LLAMA}: 3.3B active"),
    ("deepseek_v2_lite", 15_706_484_224, 2_661_150_208, f"{LLAMA}: 2.4B without embeddings"),
    ("deepseek_v2", 235_741_434_880, 21_375_800_320, f"{LLAMA}: 21B active"),
    ("deepseek_v3", 671_026_419_200, 37_552_297_472, "DeepSeek-V3 README: 671B, 37B active"),
    ("kimi_k2", 1_026_408_232_448, 32_861_500_928, "model card: 1T, 32B active"),
    ("gpt_oss_120b", 116_829_156_672, 5_711_982_912, "gpt-oss model card Table 1: 116.83B"),
    ("grok1", 315_684_034_560, 83_755_800_576, "xAI release note: 314B"),
    ("megatron_22b", 22_074_273_792, 22_074_273_792, f"{MEGATRON} 22B"),
    ("turing_530b", 529_600_819_200, 529_600_819_200, f"{MEGATRON} 529.6B"),
    ("megatron_1t", 1_008_038_758_400, 1_008_038_758_400, f"{MEGATRON} 1008.0B"),
    ("mpt_125m", 125_311_488, 125_311_488, MPT),
    ("mpt_350m", 355_985_408, 355_985_408, MPT),
    ("mpt_3b", 2_651_837_440, 2_651_837_440, MPT),
    ("mpt_7b", 6_658_859_008, 6_658_859_008, MPT),
    ("mpt_13b", 12_853_954_560, 12_853_954_560, MPT),
    ("mpt_70b", 64_862_437_376, 64_862_437_376, MPT),
]

NOMINAL = [
    # name, billions of parameters that model cards and papers round to
    ("llama2_70b", 69.0),
    ("llama3.2_1b", 1.24),
    ("llama3.2_3b", 3.21),
    ("llama4_scout", 107.8),
    ("llama4_maverick", 400.7),
    ("mistral_7b_v0.1", 7.24),
    ("mistral_nemo_12b", 12.25),
    ("mistral_small_24b", 23.57),
    ("mistral_large_2407", 122.6),
    ("glm4.5", 353.0),
    ("glm4.5_air", 106.8),
    ("minimax_m2", 228.7),
    ("qwen3_0.6b", 0.596),
    ("qwen3_235b_a22b", 235.1),
    ("gpt_oss_20b", 20.91),
    ("nemotron4_15b", 15.6),
    ("nemotron4_340b", 341.0),
    ("megatron_18.4b", 18.4),
    ("megatron_h100_177b", 177.0),
    ("zb_28.3b", 28.3),
    ("internlm_7b", 7.32),
    ("gemma2_9b", 9.24),
    ("gemma3_1b", 1.0),
    ("falcon_40b", 41.3),
    ("phi4", 14.66),
    ("opt_125m", 0.1252),
    ("nemotron_h_8b", 8.10),
    ("nemotron_h_47b", 46.8),
    ("nemotron_h_56b", 56.3),
    ("nemotron_nano_9b_v2", 8.89),
    ("nemotron_nano_12b_v2", 12.31),
    ("nemotron3_nano_30b_a3b", 31.6),
    ("nemotron3_super_120b_a12b", 120.6),
    ("nemotron3_ultra_550b_a55b", 550.0),
    ("qwen3_next_80b_a3b", 79.7),
    ("kimi_linear_48b_a3b", 49.1),
    ("jamba_v0.1", 51.6),
    ("bamba_9b", 9.78),
    ("minimax_text_01", 456.0),
    ("mamba2_2.7b", 2.70),
    ("deepseek_v3.2", 671.9),
    ("qwen3.5_35b_a3b", 34.66),
    ("deepseek_r1_distill_qwen_1.5b", 1.777088),
]


def load(name: str) -> ModelConfig:
    return ModelConfig.parse(read_yaml(find("models", name, key="model")), path="model")


def test_there_are_models() -> None:
    assert len(shipped("models")) > 100


@pytest.mark.parametrize("name", shipped("models"))
def test_shipped_model_parses_and_says_where_it_comes_from(name: str) -> None:
    model = load(name)
    assert model.source
    assert normalise(model.name)
    assert parameters_active(model) <= parameters_total(model)


@pytest.mark.parametrize(
    ("name", "total", "active"), [row[:3] for row in PARAMETERS], ids=[row[0] for row in PARAMETERS]
)
def test_size_is_the_published_one(name: str, total: int, active: int) -> None:
    model = load(name)
    assert parameters_total(model) == total
    assert parameters_active(model) == active


@pytest.mark.parametrize(("name", "billions"), NOMINAL, ids=[row[0] for row in NOMINAL])
def test_size_rounds_to_the_advertised_one(name: str, billions: float) -> None:
    assert parameters_total(load(name)) / 1e9 == pytest.approx(billions, rel=0.005)


def test_estimated_models_say_so_and_from_what() -> None:
    millions = {"gpt4": 1_800_000, "gpt4o": 200_000, "claude3.5_sonnet": 400_000,
                "gemini_siri": 1_200_000, "gpt5": 3_200_000}  # fmt: skip
    named = {name for name in shipped("models") if load(name).name.endswith("(est.)")}
    assert named == millions.keys() == {name for name in shipped("models") if load(name).notes}
    for name, count in millions.items():
        model = load(name)
        assert parameters_total(model) / 1e6 == pytest.approx(count, rel=0.03)
        assert model.source.startswith("estimated from ")
        (note,) = model.notes
        for part in (model.name, "estimated from", " %", "direction only"):
            assert part in note


def test_learned_positions_grow_with_the_sequence() -> None:
    # llm-foundry sizes the table by max_seq_len, so a longer benchmark row has more parameters.
    model = load("mpt_7b")
    longer = model.model_copy(update={"max_position_embeddings": 8192})
    assert parameters_total(longer) - parameters_total(model) == (8192 - 2048) * 4096


def test_multi_token_prediction_is_outside_the_count() -> None:
    model = load("deepseek_v3")
    assert model.mtp_num_layers == 0
    assert parameters_total(model.model_copy(update={"mtp_num_layers": 1})) == 671_026_419_200


def test_every_alias_resolves() -> None:
    aliases = read_yaml(data_dir("models") / "aliases.yaml")
    for alias, stem in aliases.items():
        assert find("models", alias, key="model").stem == stem
        assert find("models", alias, key="model").is_file()


def test_no_alias_repeats_another_name() -> None:
    aliases = read_yaml(data_dir("models") / "aliases.yaml")
    names = [normalise(alias) for alias in aliases] + [normalise(s) for s in shipped("models")]
    assert len(names) == len(set(names)) == len(index("models"))


@pytest.mark.parametrize(
    ("spelling", "stem"),
    [
        ("llama3.1_70B", "llama3.1_70b"),
        ("Llama-3.1-70B", "llama3.1_70b"),
        ("meta-llama/Llama-3.1-70B", "llama3.1_70b"),
        ("llama-3-70b", "llama3_70b"),
        ("LLAMA3_70B", "llama3_70b"),
        ("mixtral_8x22B_v0.1", "mixtral_8x22b"),
        ("Mixtral-8x22B-v0.1", "mixtral_8x22b"),
        ("DeepSeekV3", "deepseek_v3"),
        ("GPT3-175B", "gpt3_175b"),
        ("GPT OSS 120B", "gpt_oss_120b"),
        ("Qwen3_30B_a3B", "qwen3_30b_a3b"),
        ("GPT-310.1B", "megatron_310.1b"),
        ("GPT-177B", "megatron_h100_177b"),
        ("turing-530B", "megatron_529.6b"),
    ],
)
def test_names_as_people_write_them(spelling: str, stem: str) -> None:
    assert find("models", spelling, key="model").stem == stem


def test_files_read_the_same_way() -> None:
    order = list(ModelConfig.model_fields)
    order.insert(1, order.pop(order.index("source")))
    for name in shipped("models"):
        keys = list(yaml.safe_load(find("models", name, key="model").read_text()))
        assert keys == sorted(keys, key=order.index), name
