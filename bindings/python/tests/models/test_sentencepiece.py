"""SentencePiece models give the tokens, offsets and texts of the SentencePiece library."""

import random

import pytest
import sentencepiece
import sentencepiece_proto as proto
from sentencepiece_models import MODELS, TEXTS, random_texts, train

import layerzero as lz
from layerzero._sentencepiece import model_of, tokenizer_of

# A text of thousands of pieces: sums of scores lose precision, and queues grow.
LONG = " ".join(random_texts(1500, 5)) + "." * 500


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return train(tmp_path_factory.mktemp("models"), request.param)


@pytest.fixture(scope="module")
def processor(model):
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def test_ids_equal_the_from_library(model, processor):
    texts = [*TEXTS, LONG, *random_texts(2000, 1)]
    wanted = processor.encode(texts)
    for text, found, expected in zip(texts, lz.tokenize(texts, model), wanted, strict=True):
        assert found == expected, repr(text)


def test_texts_equal_the_from_library(model, processor):
    chance, size = random.Random(2), processor.get_piece_size()
    rows = processor.encode([*TEXTS, *random_texts(500, 3)])
    rows += [[chance.randrange(size) for _ in range(chance.randrange(1, 12))] for _ in range(1500)]
    rows = [row for row in rows if row]
    for skip in (False, True):
        for row, found, expected in zip(rows, lz.detokenize(rows, model, skip_special_tokens=skip), processor.decode(rows), strict=True):
            assert found == expected, row


def test_offsets_are_bytes_of_the_text_before_normalization(model, processor):
    texts = [*TEXTS, *random_texts(300, 4)]
    found = lz.tokenize(texts, model, return_offsets=True)[1]
    for text, offsets in zip(texts, found, strict=True):
        wanted = processor.encode(text, return_type="offset_mapping", return_bytes=True)
        assert [tuple(pair) for pair in offsets] == [tuple(pair) for pair in wanted["offsets"]], repr(text)


def test_sentencepiece_kernel_is_selected_and_others_have_reasons(model):
    tokenizer = lz.register_tokenizer("sentencepiece-model", model)
    assert lz.which("tokenize.encode", ["a"], tokenizer).kernel_id == "tokenize.sentencepiece.encode"
    assert "SentencePiece model" in str(lz.explain("tokenize.encode", ["a"], tokenizer).to_dict())


def test_control_words_in_a_text_are_text(model, processor):
    control = {number for number in range(processor.get_piece_size()) if processor.is_control(number)}
    for text in ("\uffff<s>\uffff", "<s>", "</s> <s>", "a<s>b", "<ctl>", "[INST]", "<pad>"):
        assert not control & set(lz.tokenize(text, model)), text
        assert not control & set(lz.tokenize(text, processor)), text


def random_model(chance):
    """A small model with many ties, unused pieces, and reserved pieces that text could be mistaken for."""
    letters = "ab\u2581.é "
    texts = {"".join(chance.choice(letters) for _ in range(chance.randrange(1, 5))) for _ in range(chance.randrange(3, 30))}
    kinds = [proto.NORMAL] * 6 + [proto.UNUSED, proto.UNUSED, proto.USER_DEFINED, proto.CONTROL]
    scores = [-1.0, -1.5, -2.0, -2.0, -3.5, -0.1, 0.0, 2.5]
    pieces = [proto.Piece("<unk>", 0.0, proto.UNKNOWN), proto.Piece("<s>", 0.0, proto.CONTROL)]
    pieces += [proto.Piece(text, chance.choice(scores), chance.choice(kinds)) for text in sorted(texts)]
    byte_fallback = chance.random() < 0.3
    if byte_fallback:
        pieces += [proto.Piece(f"<0x{byte:02X}>", 0.0, proto.BYTE) for byte in range(256)]
    settings = proto.normalizer(*(chance.random() < 0.7 for _ in range(3)))
    kind = chance.choice([proto.UNIGRAM, proto.UNIGRAM, proto.BPE, proto.BPE, proto.WORD, proto.CHAR])
    return proto.model(pieces, kind, byte_fallback=byte_fallback, suffix=chance.random() < 0.3, normalizer=settings)


def test_random_models_match_the_library():
    chance, compared = random.Random(11), 0
    for _ in range(80):
        content = random_model(chance)
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        except RuntimeError:
            continue
        tokenizer = tokenizer_of(content)
        texts = ["".join(chance.choice("ab .\u2581éx<s>") for _ in range(chance.randrange(1, 25))) for _ in range(20)]
        wanted = processor.encode(texts)
        assert lz.tokenize(texts, tokenizer) == wanted
        rows = [[chance.randrange(processor.get_piece_size()) for _ in range(6)] for _ in range(20)]
        assert lz.detokenize(rows, tokenizer) == processor.decode(rows)
        compared += 1
    assert compared > 50


UNKNOWN = proto.Piece("<unk>", 0.0, proto.UNKNOWN)
REFUSED = {
    "it has no pieces": proto.model([], proto.BPE),
    "damaged": b"\x0a\xff",
    "unknown model type 9": proto.model([UNKNOWN], 9),
    "unknown type 7": proto.model([UNKNOWN, proto.Piece("a", 0.0, 7)], proto.BPE),
    "field 9 of ModelProto": proto.model([UNKNOWN, proto.Piece("a")], proto.BPE, rest=proto.number_field(9, 1)),
    "field 60 of TrainerSpec": proto.model([UNKNOWN, proto.Piece("a")], proto.BPE, rest=proto.bytes_field(2, proto.number_field(60, 1))),
    "field 7 of NormalizerSpec": proto.model([UNKNOWN, proto.Piece("a")], proto.BPE, normalizer=proto.number_field(7, 1)),
    "no piece has type UNKNOWN": proto.model([proto.Piece("a")], proto.BPE),
    "defined twice": proto.model([UNKNOWN, proto.Piece("a"), proto.Piece("a")], proto.UNIGRAM),
    "not finite": proto.model([UNKNOWN, proto.Piece("a", float("nan"))], proto.UNIGRAM),
    "no piece of type BYTE for byte": proto.model([UNKNOWN, proto.Piece("a")], proto.BPE, byte_fallback=True),
    "precompiled_charsmap": proto.model([UNKNOWN, proto.Piece("a")], proto.BPE, normalizer=proto.bytes_field(2, b"\x00\x04\x00\x00" + b"\xff" * 1500)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_unsupported_models_are_refused_with_a_reason(reason, tmp_path):
    path = tmp_path / "m.model"
    path.write_bytes(REFUSED[reason])
    for refused in (lambda: lz.tokenize("a", path), lambda: tokenizer_of(REFUSED[reason])):
        with pytest.raises(ValueError, match=reason):
            refused()


def test_damaged_models_are_refused_or_read_but_never_crash(tmp_path):
    content = train(tmp_path, "bpe-nfkc_cf-user").read_bytes()
    chance = random.Random(13)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        try:
            lz.tokenize(TEXTS, tokenizer_of(bytes(damaged)))
        except ValueError:
            pass


def test_a_processor_whose_options_change_tokens_is_refused(tmp_path):
    path = str(train(tmp_path, "bpe"))
    for options in ({"add_bos": True}, {"add_eos": True}, {"reverse": True}, {"out_type": str}):
        with pytest.raises(ValueError, match="pass a processor without them"):
            lz.tokenize("a b", sentencepiece.SentencePieceProcessor(model_file=path, **options))


def test_model_is_passed_to_a_worker_with_the_same_digest(tmp_path):
    path = train(tmp_path, "unigram")
    tokenizer = lz.Tokenizer.from_file(path)
    assert tokenizer.digest == tokenizer_of(path.read_bytes()).digest
    assert model_of(tokenizer) == path.read_bytes()


@pytest.mark.parametrize("name", ["unigram", "bpe-like-gemma"])
def test_the_library_as_a_kernel(name, tmp_path):
    assert "sentencepiece" in lz.load_backends("sentencepiece")
    tokenizer = lz.register_tokenizer("for-sentencepiece", train(tmp_path, name))
    wanted = lz.ops.tokenize_encode(TEXTS, tokenizer)
    lz.lock("tokenize.encode", "sentencepiece.encode")
    try:
        found = lz.ops.tokenize_encode(TEXTS, tokenizer)
    finally:
        lz.unlock("tokenize.encode")
    assert [list(part) for part in found] == [list(part) for part in wanted]
