"""SentencePiece models of every kind, trained on the fly, and texts on which different encoders give different tokens."""

import random
from pathlib import Path

import sentencepiece

ROOT = Path(__file__).parents[4]

SENTENCES = """The quick brown fox isn't jumping over 12345 lazy dogs; it's well-known, WE'VE seen [REFERENCE_DOC_7] 3.14 times.
Ich weiß nicht, ob's größer wäre: Straße, Übergröße, ÄÖÜ. L'été à Noël, ça va. ¿Qué? ¡Sí! Zażółć gęślą jaźń.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ελληνικά: Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
日本語のテキストです。東京タワーは333メートル。ｶﾀｶﾅ ＡＢＣ１２３ 中文分词测试：我们在北京大学学习计算机科学。
한국어 문장입니다. 서울특별시 123번지 النص العربي مع التشكيل: كِتَابٌ ١٢٣ עברית עם ניקוד: שָׁלוֹם עֲלֵיכֶם
हिन्दी में पाठ: नमस्ते दुनिया १२३। ไทยไม่มีเว้นวรรค বাংলা Tiếng Việt rất khó đọc ở đây.
def f(x: int = 0) -> str:\treturn {'a': x[0] != 0x1F, "b": [1, 2, 3]}  # comment ... see http://example.com/a?b=c&d=e""".splitlines()

# Larger than the characters that any version of the documents, the corpus, contains.
BASE = {"vocab_size": 700, "hard_vocab_limit": False, "character_coverage": 0.995, "minloglevel": 2, "num_threads": 1}
SPACES = ["\u2581" * count for count in range(2, 9)]

# Training options by name.
MODELS = {
    "unigram": {"model_type": "unigram"},
    "unigram-nfkc": {"model_type": "unigram", "normalization_rule_name": "nfkc"},
    "unigram-nfkc_cf-bytes": {"model_type": "unigram", "normalization_rule_name": "nfkc_cf", "byte_fallback": True},
    "unigram-identity-user": {
        "model_type": "unigram",
        "normalization_rule_name": "identity",
        "user_defined_symbols": ["well", "[REFERENCE_DOC_7]", "[REF", "..", "ﬁ", *SPACES],
        "remove_extra_whitespaces": False,
    },
    "unigram-control-suffix": {
        "model_type": "unigram",
        "control_symbols": ["<ctl>", "[INST]"],
        "treat_whitespace_as_suffix": True,
        "pad_id": 3,
        "unk_surface": "??",
    },
    "unigram-user-nmt": {"model_type": "unigram", "user_defined_symbols": ["<sep>", "é", "한", "a"], "split_digits": True},
    "bpe": {"model_type": "bpe"},
    "bpe-bytes-like-llama": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "split_digits": True,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
    },
    "bpe-like-gemma": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<mask>", "\n", "\n\n", "<table>", "well", "[REFERENCE_DOC_7]", *SPACES],
    },
    "bpe-nfkc_cf-user": {"model_type": "bpe", "normalization_rule_name": "nfkc_cf", "user_defined_symbols": ["a b", "known", "🙂"]},
    "bpe-suffix-control": {"model_type": "bpe", "treat_whitespace_as_suffix": True, "control_symbols": ["<ctl>", "x<y"]},
    "bpe-no-prefix": {"model_type": "bpe", "add_dummy_prefix": False, "split_by_whitespace": False},
    "char": {"model_type": "char", "user_defined_symbols": ["[REF", "well"], "byte_fallback": True},
    "word": {"model_type": "word"},
}

TEXTS = [
    "",
    " ",
    "   ",
    "a",
    " a",
    "a ",
    "  two  spaces   and\tmore    \n\n  lines \r\n\t tabs \x0b\x0c\x85\xa0\u2003\u3000end  ",
    "well-known, a well known  well",
    "see [REFERENCE_DOC_7] and [REFERENCE_DOC_77], [REF] [REFERENCE",
    "a\u0300\u0301 e\u0301\u0323 o\u0308 \u1100\u1161\u11a8 \u1112\u1161\u11ab\u1100\u1173\u11af ﬁ ﬂ Ⅷ ² ½ ㎏ Å Ω",
    "\uffff<s>\uffff</s><unk><pad><ctl>[INST]<0x41> <s> </s> x<y ▁<s>▁",
    "." * 3 + " " + "." * 17 + "…" + "." * 64 + "-" * 40 + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "👩‍🚀👩🏽‍💻🇩🇪🏳️‍🌈 👍🏽!! ❤️‍🔥 ☃️ 🙂 \ufeff\u200b\u200d\u00ad\u0000\u0001\u007f\ufffd\ufffe\U0010ffff\ue000\U000e0001",
    "▁▁a▁b ▁ c",
    "ABC ＡＢＣ ﾊﾟ ㍿ ſ ẞ İ ı ǅ",
    *SENTENCES,
]
ALPHABET = [*"aeosn .,-[]<>/▁_R3é", "  ", "<s>", "well", "known", "..", "\n", "\u0301", "\u1100\u1161", "東", "ｶﾞ", "🙂", "\uffff", "한", "[REF", "ﬁ", "\xa0", "\0"]


def corpus() -> list[str]:
    pages = [path for folder in ("docs", "results") for path in sorted((ROOT / folder).glob("*.md"))]
    lines = [line.strip() for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    return [line[:300] for line in lines if line][:1500] + SENTENCES * 8


def train(folder: Path, name: str) -> Path:
    prefix = folder / name
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_prefix=str(prefix), **BASE, **MODELS[name])
    return prefix.with_name(f"{name}.model")


def random_texts(count: int, seed: int) -> list[str]:
    """Short texts that are difficult for tokenizers, words of many languages, and arbitrary code points."""
    chance = random.Random(seed)
    words = [word for line in SENTENCES for word in line.split(" ")]

    def character() -> str:
        point = chance.choice([0x80, 0x800, 0x3000, 0x10000, 0x110000])
        point = chance.randrange(point)
        return "x" if 0xD800 <= point < 0xE000 else chr(point)

    makers = [lambda: chance.choice(ALPHABET), lambda: chance.choice(words) + " ", character]
    return ["".join(chance.choice(makers)() for _ in range(chance.randrange(1, 14))) for _ in range(count)]
