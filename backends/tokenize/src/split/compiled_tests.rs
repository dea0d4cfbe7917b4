//! Compares compiled splitters with the engine of the definition.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::{
    CL100K, DEEPSEEK, DEEPSEEK_HAN, DEEPSEEK_NUMBERS, GPT2, O200K, QWEN, Rules, Splitter, Stage, Stages,
    TEKKEN, Text,
};

const CLIP: &str = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// Expressions of tokenizers, and whether pieces begin at every space before a letter.
const EXPRESSIONS: [(&str, bool); 13] = [
    (GPT2, true),
    (CL100K, true),
    (QWEN, true),
    (O200K, true),
    (DEEPSEEK, true),
    (TEKKEN, true),
    (CLIP, false),
    (DEEPSEEK_HAN, false),
    (r"\p{N}{1,3}", false),
    (r"[0-9][0-9][0-9]", false),
    (r"\s+", false),
    (r" ?[^(\s|[.,!?…。，、।۔،])]+", false),
    (r"(?:ab|a)(?:b|c)?c?|(?i:st){1,3}|\p{Greek}+", false),
];

fn compiled(expression: &str) -> Stage {
    Stage::of_expression(expression, true, true, Text::Characters).unwrap_or_else(|| panic!("{expression}"))
}

/// An expression in the definition's engine and compiled: all parts, and only matches.
struct Compared {
    expression: &'static str,
    engine: fancy_regex::Regex,
    isolated: Splitter,
    matches: Splitter,
}

fn compared() -> &'static [Compared] {
    static COMPARED: OnceLock<Vec<Compared>> = OnceLock::new();
    COMPARED.get_or_init(|| {
        let one = |(expression, _): (&'static str, bool)| Compared {
            expression,
            engine: fancy_regex::Regex::new(expression).unwrap(),
            isolated: in_blocks(vec![compiled(expression)], &[expression]),
            matches: splitter(vec![Stage::of_expression(expression, true, false, Text::Characters).unwrap()]),
        };
        EXPRESSIONS.into_iter().map(one).collect()
    })
}

/// Several stages, in the definition's engine and compiled.
struct Combined {
    expressions: &'static [&'static str],
    engines: Vec<fancy_regex::Regex>,
    splitter: Splitter,
}

/// Stages of tokenizers (DeepSeek, Falcon, StarCoder) whose first ones isolate runs of a set, and others for which these overlap, or which
/// end with such stages.
const STAGES: [&[&str]; 7] = [
    &[DEEPSEEK_NUMBERS, DEEPSEEK_HAN, DEEPSEEK],
    &[r"\p{P}+", GPT2, "[0-9][0-9][0-9]"],
    &[r"\p{N}", GPT2],
    &[r"\p{N}{1,3}", "[0-9a]", TEKKEN],
    &[r"\s+", DEEPSEEK_HAN, r"\p{L}+"],
    &[r"\p{N}{1,3}", DEEPSEEK_HAN],
    &[CLIP, r"\p{N}", "a+"],
];

fn combined() -> &'static [Combined] {
    static COMBINED: OnceLock<Vec<Combined>> = OnceLock::new();
    COMBINED.get_or_init(|| {
        let one = |expressions: &'static [&'static str]| Combined {
            expressions,
            engines: expressions.iter().map(|one| fancy_regex::Regex::new(one).unwrap()).collect(),
            splitter: in_blocks(expressions.iter().map(|one| compiled(one)).collect(), expressions),
        };
        STAGES.into_iter().map(one).collect()
    })
}

fn splitter(stages: Vec<Stage>) -> Splitter {
    Splitter::Compiled(Stages::from(stages))
}

/// The same, with blocks of ASCII if the rules of the expressions are known.
fn in_blocks(stages: Vec<Stage>, expressions: &[&str]) -> Splitter {
    Splitter::Compiled(Stages::from(stages).with_ascii_rules(Rules::of_expressions(expressions)))
}

fn pieces(splitter: &Splitter, text: &str) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    splitter.for_each(text, |start, end| pieces.push((start, end)));
    pieces
}

/// The pieces between and of the matches of the definition's engine.
fn expected(expression: &fancy_regex::Regex, text: &str, base: usize, gaps: bool) -> Vec<(usize, usize)> {
    let (mut pieces, mut done) = (Vec::new(), 0);
    for found in expression.find_iter(text) {
        let found = found.unwrap();
        if gaps && done < found.start() {
            pieces.push((base + done, base + found.start()));
        }
        pieces.push((base + found.start(), base + found.end()));
        done = found.end();
    }
    if gaps && done < text.len() {
        pieces.push((base + done, base + text.len()));
    }
    pieces
}

fn texts() -> impl Strategy<Value = String> {
    let known = [
        " ", " ", "  ", "\n", "\r", "\t", "'", "'s", "'LL", "/", "a", "b", "c", "A", "ab", "St", "ſ", "1",
        "23", "½", "é", "É", "ʰ", "ǅ", "\u{301}", "漢", "龥", "ゟ", "カ", "!", "…", "$", "\u{a0}",
        "\u{3000}", "👍", "\u{0}", "\u{200b}", "Ω", "।",
    ];
    let piece = prop_oneof![
        8 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => "[a-zA-Z']{1,9}",
        // Longer than the window in which letters are skipped.
        1 => "[a-z]{14,40}",
        1 => "[A-Z]{1,20}[a-z]{0,20}",
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Texts that are ASCII for the most part, so that whole blocks are.
pub fn mostly_ascii() -> impl Strategy<Value = String> {
    let known = [
        " ", "  ", "\n", "\r\n", "\t", "\t\t", " \n", "\n ", "'", "'s", "'LL", "'re", "'t'd", "/", "//",
        "!\n/", "(", "((", " (", "_", "a", "aB", "ABc", "The", " word", "1", "23", " 4567", "!", "!!",
        ";\n\n", "\u{0}", "\u{7f}", "\u{b}", "\u{1c}",
    ];
    let piece = prop_oneof![
        400 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        20 => "[ -~]{1,20}",
        20 => "[\\x00-\\x7f]{1,4}",
        // Longer than a block.
        2 => "([a-z]{60,140}|[0-9]{60,140}| {60,140}|[!/\\n]{60,140})",
        2 => prop::sample::select(vec!["é", "É", "ſ", "\u{301}", "漢", "٣", "\u{a0}", "\u{3000}", "…", "👍"]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..120).prop_map(|pieces| pieces.concat())
}

/// Texts whose characters are mostly letters, marks and symbols that blocks know, ASCII and others.
pub fn many_scripts() -> impl Strategy<Value = String> {
    let known = [
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "a",
        "B",
        "Ab",
        "aB",
        "1",
        "1234",
        "'",
        "(",
        " (",
        "((",
        "/",
        ";\n",
        "'s",
        "'ſ",
        "é",
        "É",
        "ñ",
        "ß",
        "ж",
        "Ж",
        "ا",
        "क",
        "ि",
        "\u{301}",
        "漢",
        "字",
        "カ",
        "ー",
        "゙",
        "«",
        "»",
        "—",
        "。",
        "€",
        " é",
        "(é",
        "(aé",
        "(aéa",
        "«a",
        "—é",
        " 漢",
        "1漢",
        "漢1",
        "漢a",
        "(漢",
        "漢\u{301}",
        "ậ",
    ];
    let rare = ["\u{200d}", "٣", "\u{a0}", "\u{3000}", "👍", "ʰ", "ǅ", "ª", "・", "\u{0}", "½", "\u{85}"];
    let piece = prop_oneof![
        300 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        10 => prop::sample::select(rare.to_vec()).prop_map(str::to_owned),
        20 => "[a-zéж]{1,12}",
        // Longer than a block.
        2 => "([ж]{30,50}|[漢]{20,40}|[«]{30,50})",
    ];
    prop::collection::vec(piece, 0..120).prop_map(|pieces| pieces.concat())
}

/// Random expressions of the supported syntax.
fn expressions() -> impl Strategy<Value = String> {
    let atoms = [
        r"\p{L}",
        r"\p{N}",
        r"\s",
        r"\S",
        "[a-c]",
        "[^a\r\n]",
        "a",
        "b",
        " ",
        "'",
        r"[\r\n/]",
        r"[\p{Lu}\p{M}]",
        "(?:ab|b)",
        "(?i:s|ll)",
        r"\d",
        r"\w",
        "漢",
    ];
    let counts = ["", "", "?", "*", "+", "{1,3}", "{2}", "{0,2}"];
    let group = |atom: &str, count: &str| atom.starts_with('(') && matches!(count, "*" | "+");
    let item = (prop::sample::select(atoms.to_vec()), prop::sample::select(counts.to_vec())).prop_map(
        move |(atom, count)| if group(atom, count) { atom.to_owned() } else { format!("{atom}{count}") },
    );
    let sequence = (prop::collection::vec(item, 1..4), prop::bool::weighted(0.2))
        .prop_map(|(items, ahead)| format!("{}{}", items.concat(), if ahead { r"(?!\S)" } else { "" }));
    let tail = prop::sample::select(vec!["", r"|\s+(?!\S)|\s+"]);
    (prop::collection::vec(sequence, 1..5), tail)
        .prop_map(|(sequences, tail)| format!("{}{tail}", sequences.join("|")))
}

/// Splitting before and after a position at which a piece begins gives the same pieces as splitting the whole text.
fn check_positions(splitter: &Splitter, text: &str, found: &[(usize, usize)], what: &str) {
    for position in (0..text.len()).filter(|position| splitter.begins_piece(text, *position)) {
        let mut parts = Vec::new();
        splitter.between(text, 0, position, &mut |start, end| parts.push((start, end)));
        splitter.between(text, position, text.len(), &mut |start, end| parts.push((start, end)));
        assert_eq!(parts, found, "{what} of {text:?} at {position}");
    }
}

#[test]
fn expressions_of_tokenizers_are_supported() {
    for (expression, begins) in EXPRESSIONS {
        let splitter = splitter(vec![compiled(expression)]);
        assert_eq!(splitter.begins_piece(" a", 0), begins, "{expression}");
    }
    // After stages that ignore words, and not after others.
    let after = |first: &str| splitter(vec![compiled(first), compiled(DEEPSEEK)]).begins_piece(" a", 0);
    assert!(after(r"\p{N}{1,3}") && after(DEEPSEEK_HAN) && !after(r"\p{L}"));
}

#[test]
fn other_expressions_are_rejected() {
    for expression in [
        "",
        "a*",
        "a|",
        "(?=a)b",
        "(?<=a)b",
        "(?<!a)b",
        "a+?",
        "a++",
        "a?+b",
        "a{1,3}+",
        r"\ba",
        "^a",
        "a$",
        "(?i)a",
        "a(?i)b",
        "[ab]*a[ab]{12}",
        r"\p{N}{1,9999}",
        "(ab)*",
        "(?!a)b",
        "a(?!bc)",
        "[",
        "(",
        "a)",
        r"\s++$|a",
        "(?x) a",
        "(?P<n>a)",
    ] {
        assert!(Stage::of_expression(expression, true, true, Text::Characters).is_none(), "{expression}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn expressions_of_tokenizers_split_like_the_definition(text in prop_oneof![texts(), mostly_ascii(), many_scripts()]) {
        for Compared { expression, engine, isolated, matches } in compared() {
            let found = pieces(isolated, &text);
            prop_assert_eq!(&found, &expected(engine, &text, 0, true), "{} of {:?}", expression, text);
            check_positions(isolated, &text, &found, expression);
            prop_assert_eq!(pieces(matches, &text), expected(engine, &text, 0, false), "{} of {:?}", expression, text);
        }
    }

    #[test]
    fn stages_split_the_pieces_before_them(text in prop_oneof![texts(), mostly_ascii(), many_scripts()]) {
        for Combined { expressions, engines, splitter } in combined() {
            let mut wanted = vec![(0, text.len())];
            for engine in engines {
                let split = |(start, end): (usize, usize)| expected(engine, &text[start..end], start, true);
                wanted = wanted.into_iter().flat_map(split).collect();
            }
            let found = pieces(splitter, &text);
            prop_assert_eq!(&found, &wanted, "{:?} of {:?}", expressions, text);
            check_positions(splitter, &text, &found, &expressions.concat());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_expressions_split_like_the_definition(expression in expressions(), texts in prop::collection::vec(texts(), 4)) {
        let Some(stage) = Stage::of_expression(&expression, true, true, Text::Characters) else { return Ok(()) };
        let engine = fancy_regex::Regex::new(&expression).unwrap();
        let splitter = splitter(vec![stage]);
        for text in texts {
            let found = pieces(&splitter, &text);
            prop_assert_eq!(&found, &expected(&engine, &text, 0, true), "{} of {:?}", expression, text);
            check_positions(&splitter, &text, &found, &expression);
        }
    }
}
