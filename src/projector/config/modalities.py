"""What models read or make beside text: latents that a diffusion transformer denoises, images."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from projector.config._base import Config

Extent = Annotated[int, Field(gt=0, le=1 << 30)]
"""A width or a count of a real architecture; the limit keeps products within exact integers."""

Count = Annotated[int, Field(ge=0, le=1 << 30)]
"""The same, where nothing is legal too."""


class DiffusionConfig(Config):
    """What a diffusion transformer denoises, and what it is told beside it.

    A sequence has the tokens of the residual stream: latents, and text where both are joined.
    """

    latent_size: Extent
    """Numbers of a latent token that goes in: channels times what a patch covers."""
    latent_out: Count = 0
    """The same of one that comes out; 0 is as many."""
    text_tokens: Count = 0
    """Tokens of text that condition a sample; 0 has none."""
    text_size: Count = 0
    """Width of a token's embedding, as the text encoder gives it."""
    text_layers: Literal[1, 2] = 1
    """Linear layers that bring text to the width of the model."""
    pooled_size: Count = 0
    """Width of one embedding of the whole text, or class, beside the time; 0 has none."""
    time_size: Extent = 256
    """Sines and cosines of the time of a sample."""
    guidance: bool = False
    """Whether the scale of guidance is embedded like the time (FLUX.1 dev)."""
    modulation: Literal["layer", "shared"] = "layer"
    """Scales, shifts and gates of norms: each layer projects them, or the model does once and a
    layer adds a table of its own (PixArt's adaLN-single, arXiv 2310.00426; Wan)."""

    @model_validator(mode="after")
    def _text_has_a_width(self) -> Self:
        if (self.text_tokens > 0) != (self.text_size > 0):
            msg = f"text_tokens ({self.text_tokens}) and text_size ({self.text_size}) go together"
            raise ValueError(msg)
        return self

    @property
    def out_size(self) -> int:
        """Numbers of a latent token that comes out."""
        return self.latent_out or self.latent_size

    def text_width(self, hidden: int) -> int:
        """Return all inputs of the projections to ``hidden`` that a token of text goes through."""
        return self.text_size + (self.text_layers - 1) * hidden if self.text_tokens else 0

    def condition_width(self, hidden: int) -> int:
        """Return all inputs of the projections to ``hidden`` that run once a sample."""
        times = 1 + self.guidance
        width = times * (self.time_size + hidden) + (self.modulation == "shared") * 6 * hidden
        return width + (self.pooled_size + hidden if self.pooled_size else 0)

    @property
    def embedder_biases(self) -> int:
        """Biases of what embeds latents, text, time and the rest, each of the model's width."""
        pairs = 1 + self.guidance + (self.pooled_size > 0)
        text = self.text_layers * (self.text_tokens > 0)
        return 1 + text + 2 * pairs + 6 * (self.modulation == "shared")


class VisionConfig(Config):
    """A vision transformer whose tokens a language model reads among its own (arXiv 2010.11929).

    Its layers have full attention over the patches of one image, with biases, and an MLP. A
    projector of two linear layers makes tokens of them. It stands on the first pipeline stage.
    """

    num_layers: int = Field(gt=0, le=1000)
    """Layers of the tower."""
    hidden_size: Extent
    """Width of a patch's embedding."""
    ffn_hidden_size: Extent
    """Inner width of its MLP."""
    num_attention_heads: Extent
    """Heads of its attention."""
    patch_size: Extent
    """Numbers of a patch: channels times pixels, times frames (588 of 14 x 14 pixels in colour)."""
    patches: Extent
    """Patches of an image."""
    images: Extent = 1
    """Images in a sequence, whose tokens are part of its length."""
    merge: Extent = 1
    """Neighbouring patches that become one token (4 in Qwen2-VL)."""
    projector_size: Extent | None = None
    """Inner width of the projector; none given is that of the merged patches."""
    gated: bool = False
    """Whether its MLP has a gate projection (Qwen2.5-VL)."""
    normalization: Literal["layernorm", "rmsnorm"] = "layernorm"
    """RMSNorm has one vector, LayerNorm two."""
    learned_positions: bool = True
    """Whether each patch has a learned position; rotations change no projection here."""
    frozen: bool = False
    """Whether the tower stays as it is: no backward, no gradients, no optimizer states. The
    projector is trained."""

    @model_validator(mode="after")
    def _heads_and_tokens_are_whole(self) -> Self:
        for key, whole, part in (
            ("num_attention_heads", self.hidden_size, self.num_attention_heads),
            ("merge", self.patches, self.merge),
        ):
            if whole % part:
                raise ValueError(f"{key} ({part}) must divide {whole}")
        return self

    @property
    def inner_size(self) -> int:
        """Inner width of the projector."""
        return self.projector_size or self.merge * self.hidden_size

    @property
    def tokens(self) -> int:
        """Tokens of all images of a sequence, for the language model."""
        return self.images * self.patches // self.merge
