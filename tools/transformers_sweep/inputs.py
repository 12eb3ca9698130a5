"""Makes the arguments of a model's call, by the names of its forward's parameters."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

BATCH, LENGTH = 3, 9
# Token ids, below the ids of images, audio and the like.
_LOWEST, _HIGHEST = 3, 100
# The last token of each text, because some models pool there.
END = 101

Arguments = dict[str, Any]


def parameters_of(model: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(model.forward).parameters)


def candidates(model: Any) -> Iterator[Arguments]:
    """Yields arguments to try, one after the other, until the model takes them."""
    names = _names(model)
    choices = [list(_values(name, model)) for name in names]
    for values in itertools.islice(itertools.product(*choices), 40):
        yield dict(zip(names, values, strict=True))


def _names(model: Any) -> list[str]:
    parameters = parameters_of(model)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind in named
    ]
    main = getattr(model, "main_input_name", "input_ids")
    main = "inputs_embeds" if main not in parameters and "inputs_embeds" in parameters else main
    if main in parameters and main not in required:
        required.insert(0, main)
    for name in ("decoder_input_ids", "pixel_values", "bbox", "grid_thw", "image_grid_thw"):
        wanted = _is_pair(model) if name == "pixel_values" else True
        wanted = wanted and (name != "image_grid_thw" or "pixel_values" in required)
        if name in parameters and name not in required and wanted and _decodes(model, name):
            required.append(name)
    if "input_ids" in parameters and _is_pair(model) and "input_ids" not in required:
        required.append("input_ids")
    if "past_values" in required:
        required += [name for name in _SERIES if name in parameters and name not in required]
    return [name for name in required if name not in ("attention_mask", "kwargs")]


def _decodes(model: Any, name: str) -> bool:
    return name != "decoder_input_ids" or bool(getattr(model.config, "is_encoder_decoder", False))


def _is_pair(model: Any) -> bool:
    """Returns whether a model has a text and an image tower side by side, which need each other."""
    return hasattr(model, "logit_scale") or "BridgeTower" in type(model).__name__


def _values(name: str, model: Any) -> Iterator[Any]:
    config = model.config
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    if "input_ids" in name or name in ("text_ids", "tokens"):
        ids = torch.randint(_LOWEST, _HIGHEST, (BATCH, LENGTH), generator=generator)
        ids[:, -1] = END
        yield ids[:, 3:] if name.startswith("decoder") else ids
    elif name in _PATCHES and any("grid_thw" in each for each in parameters_of(model)):
        times = next(_numbers(config, "temporal_patch_size"), 1)
        patch = next(_numbers(config, "patch_size"), 8)
        channels = next(_numbers(config, "in_channels", "num_channels"), 3)
        for size in (channels * times * patch**2, channels * patch**2):
            yield noise(24, size)
        yield noise(24, channels, patch, patch)
    elif name in ("inputs_embeds", "hidden_states", "inputs"):
        for width in _numbers(config, "hidden_size", "d_model", "embed_dim", "n_embd"):
            yield noise(BATCH, LENGTH, width)
    elif name in _IMAGES:
        channels = next(_numbers(config, "num_channels", "in_channels", "in_chans"), 3)
        for height, width in _image_sizes(config):
            yield noise(BATCH, channels, height, width)
        for frames in _numbers(config, "num_frames"):
            for height, width in _image_sizes(config):
                yield noise(BATCH, frames, channels, height, width)
    elif name in ("input_features", "audio_features"):
        for mels in _numbers(config, "num_mel_bins", "input_feat_per_channel", "input_dim"):
            for length in (2 * next(_numbers(config, "max_source_positions"), 32), 64, 128):
                yield noise(BATCH, mels, length)
                yield noise(BATCH, length, mels)
    elif name == "input_values":
        yield noise(BATCH, 1600)
        yield noise(BATCH, 1, 1920)
        mels = next(_numbers(config, "num_mel_bins"), 16)
        yield noise(BATCH, next(_numbers(config, "max_length"), 64), mels)
    elif name == "bbox":
        yield torch.zeros(BATCH, LENGTH, 4, dtype=torch.long)
    elif name in ("encoder_hidden_states", "encoder_outputs"):
        for width in _numbers(config, "encoder_hidden_size", "hidden_size", "d_model"):
            yield noise(BATCH, LENGTH, width)
    elif name.endswith("grid_thw") or name == "grid_thw":
        yield torch.tensor([[1, 4, 4], [1, 4, 2]])
    elif name == "past_values" and not hasattr(config, "lags_sequence"):
        for length in _numbers(config, "context_length"):
            yield noise(BATCH, length)
            for channels in _numbers(config, "num_input_channels"):
                yield noise(BATCH, length, channels)
    elif name in _SERIES:
        yield noise(*_SERIES[name]).sigmoid()
    elif name == "past_observed_mask":
        yield torch.ones(_SERIES["past_values"])
    elif name == "interpolate_pos_encoding":
        yield False
    else:
        raise LookupError(f"no values for the parameter {name}")


# The shapes of time series: the longest lag of models is 7.
_SERIES = {
    "past_values": (BATCH, LENGTH + 7),
    "past_time_features": (BATCH, LENGTH + 7, 2),
    "future_values": (BATCH, 6),
    "future_time_features": (BATCH, 6, 2),
}
_PATCHES = ("hidden_states", "pixel_values")
_IMAGES = ("pixel_values", "pixel_values_videos", "images", "image", "flattened_patches")


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            yield from _configs(getattr(config, name))


def _numbers(config: Any, *names: str) -> Iterator[int]:
    """Yields the values of these names in the configuration and its parts, each once."""
    seen = set()
    for each, name in itertools.product(_configs(config), names):
        value = getattr(each, name, None)
        if isinstance(value, int) and value not in seen:
            seen.add(value)
            yield value


def _image_sizes(config: Any) -> Iterator[tuple[int, int]]:
    seen = set()
    for each in _configs(config):
        size = getattr(each, "image_size", None)
        pair = (size, size) if isinstance(size, int) else tuple(size or ())
        if len(pair) == 2 and pair not in seen:
            seen.add(pair)
            yield pair
    yield from {(32, 32), (64, 64)} - seen


# ---- masks ----


def padding(kind: str) -> torch.Tensor:
    """Returns a mask (BATCH, LENGTH) that is 1 at tokens and 0 at padding."""
    rows = {
        "right": [[1] * 9, [1] * 4 + [0] * 5, [1] * 7 + [0] * 2],
        "left": [[1] * 9, [0] * 5 + [1] * 4, [0] * 2 + [1] * 7],
        "gaps": [[1] * 9, [1, 1, 0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 1, 1, 1, 0, 1]],
    }
    return torch.tensor(rows[kind])


def padded(arguments: Arguments, mask: torch.Tensor) -> Arguments:
    """Returns the arguments with the mask, and with END as the last token of each text."""
    arguments = arguments | {"attention_mask": mask}
    if "input_ids" in arguments:
        ids = arguments["input_ids"].clone().masked_fill(mask == 0, 0)
        last = LENGTH - 1 - mask.flip(-1).argmax(-1)
        arguments["input_ids"] = ids.scatter(1, last[:, None], END)
    return arguments


def patches_seen(model: Any, image: torch.Tensor) -> torch.Tensor:
    """Returns a mask (BATCH, rows, columns) that is False at the right edge of some images."""
    patch = next(_numbers(model.config, "patch_size"), 8)
    seen = torch.ones(BATCH, image.shape[-2] // patch, image.shape[-1] // patch, dtype=torch.bool)
    seen[1:, :, -1] = False
    return seen


def packed_positions() -> torch.Tensor:
    """Returns position ids of sequences that are packed one after the other."""
    return torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1], [0, 0, 1, 2, 3, 4, 5, 6, 7], [*range(9)]])


def own_mask(dtype: torch.dtype) -> torch.Tensor:
    """Returns a mask (BATCH, 1, LENGTH, LENGTH) to add to scores: random keys and the diagonal."""
    seen = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5
    seen |= torch.eye(LENGTH, dtype=torch.bool)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
