"""The models of the graph benchmark, with random weights: plain torch modules, written out as Hugging Face does."""

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCABULARY = 512, 8, 2, 1376, 4, 32000
HEAD_DIM = HIDDEN // HEADS
CACHED = 256


class Mlp3(nn.Module):
    """Three layers of 512 features with ReLU."""

    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.ReLU())]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x)


class RmsNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary(positions, frequencies):
    angles = torch.outer(positions, frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def repeat_kv(x):
    batch, heads, length, size = x.shape
    repeated = x[:, :, None].expand(batch, heads, HEADS // KV_HEADS, length, size)
    return repeated.reshape(batch, HEADS, length, size)


class DecoderLayer(nn.Module):
    """Hidden size 512, 8 query heads, 2 key and value heads, FFN 1376."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(HIDDEN), RmsNorm(HIDDEN)
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, FFN, bias=False)
        self.up = nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        frequencies = 1.0 / (10000 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        self.register_buffer("frequencies", frequencies)

    def attend(self, x, cos, sin, cache):
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
        k = self.k(x).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = self.v(x).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        a = F.scaled_dot_product_attention(q, repeat_kv(k), repeat_kv(v), is_causal=cache is None)
        return self.o(a.transpose(1, 2).reshape(batch, length, HIDDEN)), k, v

    def block(self, x, cos, sin, cache=None):
        a, k, v = self.attend(self.norm1(x), cos, sin, cache)
        x = x + a
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), k, v

    def forward(self, x):
        cos, sin = rotary(torch.arange(x.shape[1], dtype=torch.float32), self.frequencies)
        return self.block(x, cos, sin)[0]


class Lm(nn.Module):
    """Four decoder layers between an embedding and a head of 32 000 tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = RmsNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        cos, sin = rotary(torch.arange(tokens.shape[1], dtype=torch.float32), self.layers[0].frequencies)
        for layer in self.layers:
            x, _, _ = layer.block(x, cos, sin)
        return self.head(self.norm(x))


class LmDecode(nn.Module):
    """One token of `Lm`; keys and values are inputs and outputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, token, *cache):
        model = self.model
        x = model.embedding(token)
        position = torch.full((1,), cache[0].shape[2], dtype=torch.float32)
        cos, sin = rotary(position, model.layers[0].frequencies)
        results = []
        for layer, keys, values in zip(model.layers, cache[0::2], cache[1::2]):
            x, k, v = layer.block(x, cos, sin, (keys, values))
            results += [k, v]
        return model.head(model.norm(x)), *results


class BertLayer(nn.Module):
    """Hidden size 384, 12 heads, FFN 1536, norms after the residuals."""

    def __init__(self, size=384, heads=12):
        super().__init__()
        self.heads, self.size = heads, size
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, x):
        batch, length, _ = x.shape
        split = lambda y: y.view(batch, length, self.heads, self.size // self.heads).transpose(1, 2)  # noqa: E731
        a = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)))
        x = self.norm1(x + self.o(a.transpose(1, 2).reshape(batch, length, self.size)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert4(nn.Module):
    """Four layers over 30 522 tokens."""

    def __init__(self, size=384):
        super().__init__()
        self.words, self.positions = nn.Embedding(30522, size), nn.Embedding(512, size)
        self.norm = nn.LayerNorm(size)
        self.layers = nn.Sequential(*(BertLayer(size) for _ in range(4)))

    def forward(self, tokens):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.layers(self.norm(x))


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + (x if self.down is None else self.down(x)))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.Sequential(*(BasicBlock(*block) for block in sizes))
        self.head = nn.Linear(512, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class Llama(nn.Module):
    """A Transformers Llama of about 100 million parameters without a cache: logits of all tokens."""

    def __init__(self):
        super().__init__()
        self.model = llama()

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits


class LlamaDecode(nn.Module):
    """One token of the Llama; keys and values are inputs and outputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model.model

    def forward(self, token, *cache):
        from transformers import DynamicCache

        past = DynamicCache()
        for layer, (keys, values) in enumerate(zip(cache[0::2], cache[1::2])):
            past.update(keys, values, layer)
        position = torch.full((1, 1), cache[0].shape[2], dtype=torch.int64)
        out = self.model(input_ids=token, past_key_values=past, position_ids=position, use_cache=True)
        results = []
        for layer in out.past_key_values.layers:
            results += [layer.keys, layer.values]
        return out.logits, *results


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


def cache(layers, heads, size, length=CACHED):
    return [torch.randn(1, heads, length, size) * 0.5 for _ in range(2 * layers)]


def tokens(length, vocabulary=VOCABULARY):
    return torch.randint(0, vocabulary, (1, length))


def decode():
    return LmDecode(Lm()), (tokens(1), *cache(LAYERS, KV_HEADS, HEAD_DIM))


# The models by name: a function that makes the module, its inputs and, if there are any, options of `lz.compile`.
CASES = {
    **{f"mlp-{rows}": lambda rows=rows: (Mlp3(), (torch.randn(rows, 512),)) for rows in (1, 4, 8, 16, 32)},
    **{f"layer-{n}": lambda n=n: (DecoderLayer(), (torch.randn(1, n, HIDDEN),)) for n in (64, 256)},
    **{f"prefill-{n}": lambda n=n: (Lm(), (tokens(n),)) for n in (64, 256)},
    "decode-256": decode,
    "decode-256-int8": lambda: (*decode(), {"weights": "int8"}),
    "bert-128": lambda: (Bert4(), (tokens(128, 30522),)),
    "resnet-18": lambda: (ResNet18(), (torch.randn(1, 3, 224, 224),)),
    "llama-prefill-512": lambda: (Llama(), (tokens(512),)),
    "llama-decode-256": lambda: (LlamaDecode(Llama()), (tokens(1), *cache(8, 4, 64))),
}
