"""References for specs in tests."""

import torch


def rms_norm(x, w, eps=1e-6):
    wide = x if x.dtype == torch.float64 else x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * w.to(wide.dtype)).to(x.dtype)


def best(x):
    values, places = x.max(-1)
    return values, places


def wants_more(x, gain):
    return x * gain


def picks(x, index):
    return x[index.abs().long() % x.shape[0]]


def half_only_in_wide(x):
    if x.dtype == torch.float16:
        raise RuntimeError("not implemented for 'Half'")
    return x * 3


number = 3


def weighted_product(x, b, w):
    return (x * w[:, None]).T.to(w.dtype) @ b.to(w.dtype)


def plain_product(x, b, w):
    return x.T.to(w.dtype) @ b.to(w.dtype)


def _scores(q, k):
    return q @ k.mT * q.shape[-1] ** -0.5


def softmax_attention(q, k, v):
    return _scores(q, k).softmax(-1) @ v


def attention_by_hand(q, k, v):
    scores = _scores(q, k)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def fused_attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def scaled_attention(q, k, v, scale):
    q, k, v = (each.to(scale.dtype) for each in (q, k, v))
    return (q * scale[:, None, None] @ k.mT).softmax(-1) @ v


def _state(k, v, decay, step):
    state = 0
    for t in range(k.shape[1]):
        term = k[:, t, :, None].to(decay.dtype) * v[:, t, None, :].to(decay.dtype)
        state = state * decay[:, t, None, None].exp() + step(term)
    return state


def final_state(q, k, v, decay):
    return _state(k, v, decay, lambda value: value)


def final_state_rounded(q, k, v, decay):
    return _state(k, v, decay, lambda value: value.to(q.dtype).to(value.dtype))


def moving_average(x, mean):
    return mean.lerp_(x.mean(0), 0.5)


def float32_layer_norm(x):
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:]).to(x.dtype)


def float64_layer_norm(x):
    return torch.nn.functional.layer_norm(x.double(), x.shape[-1:]).to(x.dtype)


def times_float64(x):
    return x.double() @ torch.full((x.shape[1], 3), 0.1, dtype=torch.float64)


def float64_kept_as_bits(x):
    return (x.double().view(torch.int64) & ~0xFFF).view(torch.float64)


def quantized_in_float64(x):
    wide = x.double()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    return (wide / scale).round().to(torch.int8)


def row_sums(x):
    return x.sum(1)


def row_means(x):
    return x.mean(-1, keepdim=True)


def running_sums(x):
    return x.cumsum(1)


def cut_bits(x):
    return (x.float().view(torch.int32) & ~0xFFF).view(torch.float32)


def times_float32(x):
    return x.float() @ torch.full((x.shape[1], 3), 0.1)


def rounded_to_float8(x):
    return (x.float() / 3).to(torch.float8_e4m3fn)


def mean(x):
    return x.mean().reshape(1)


def mean_with_variance(x):
    return torch.var_mean(x)[1].reshape(1)


def mean_of_a_batch_norm(x):
    mean, var = x.new_zeros(1), x.new_ones(1)
    torch.nn.functional.batch_norm(x[:, None], mean, var, training=True, momentum=1.0)
    return mean


def batch_norm_with_running_statistics(x):
    mean, var = x.new_ones(x.shape[1]), x.new_ones(x.shape[1])
    return torch.nn.functional.batch_norm(x, mean, var)


def mean_of_a_layer_norm(x):
    return torch.native_layer_norm(x, x.shape, None, None, 1e-5)[1].reshape(1)
