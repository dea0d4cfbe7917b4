//! The texts on which candidates are compared with the definition: cases in which splitters and normalizers differ, and random tokens
//! of the vocabulary.

use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

/// Scripts, letter cases, contractions, numbers, all whitespace characters, emoji, combining marks, code.
const FIXED: [&str; 26] = [
    "",
    " ",
    "The quick brown fox jumps over the lazy dog. It's the dog's 3rd day, and they'll say WE'VE had 1,234,567 of 'em.",
    "  two  spaces   and more    \n\n  new lines \r\n\r\n\t tabs\t\tand\u{b}others\u{c}here \u{85}\u{a0}\u{2003}\u{3000}",
    "HTTPServer parseXMLHttpRequest snake_case_name CONSTANT_NAME camelCaseWord aB Ab AB ab",
    "def f(x: int = 0) -> str:\n    return f\"{x!r:>10}\"  # comment\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1F; } // done /* not */ #include <stdio.h>\r\n",
    "Ich weiß nicht, ob's größer wäre: Straße, Übergröße, ÄÖÜ, ẞ. Qu'est-ce que c'est? L'été à Noël, ça va. ¿Qué? ¡Sí!",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ЁЛКА 2024 г.",
    "Ελληνικά: Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΆΈΉ",
    "日本語のテキストです。東京タワーは333メートル。ｶﾀｶﾅ ＡＢＣ１２３",
    "中文分词测试：我们在北京大学学习计算机科学，２０２４年。",
    "한국어 문장입니다. 서울특별시 123번지",
    "النص العربي مع التشكيل: كِتَابٌ ١٢٣٤٥ هذا.",
    "עברית עם ניקוד: שָׁלוֹם עֲלֵיכֶם",
    "हिन्दी में पाठ: नमस्ते दुनिया १२३। ไทยไม่มีเว้นวรรค ১২৩ বাংলা",
    "👩‍🚀👩🏽‍💻🇩🇪🏳️‍🌈 👍🏽!! ❤️‍🔥 ☃️ ©®™ … — – “quoted” ‘single’ «guillemets»",
    "e\u{301}\u{323} a\u{30a} o\u{308} \u{1100}\u{1161}\u{11a8} ﬁ ﬂ Ⅷ ² ½ ㎏ \u{212b} \u{2126}",
    "ǅ ʰ ªº ⅷ ① ൠ ߁ 𝟘𝟙 𝒜𝓑 𠀀𠀁 \u{10ffff} \u{feff} \u{200b}\u{200d} \u{0} \u{1} \u{7f}",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D 'ſ x'y '' ' 'sx don't can'T",
    "1 12 123 1234 12345 3.14159 1e-9 -42 +7 50% $9.99 #1 @user a1b2c3 1st 2nd",
    "http://www.example.com/path/to?x=1&y=2#frag user@example.org C:\\dir\\file.txt ../../x",
    "!!! ??? ... --- *** ___ === >>> <<< {{}} [[]] (()) /// \\\\ ||| &&& ~~~ ``` ^^^",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichenverordnung pneumonoultramicroscopicsilicovolcanoconiosis",
    "x\n/y\n//z!\n/\r\n/ a/\n\n/b \n c\n\n d  \n\n  e",
];

/// The texts for a tokenizer; deterministic.
pub fn texts(tokenizer: &Tokenizer, definition: &Value) -> Vec<String> {
    let mut texts: Vec<String> = FIXED.iter().map(|text| (*text).to_owned()).collect();
    let added: Vec<&str> = definition["added_tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|token| token["content"].as_str())
        .collect();
    let mut random = Random(0x5eed);
    for token in added.iter().take(64) {
        texts.push(format!("a{token} b  {token}  {token}{token}c\n{token}\t{token}"));
    }
    let size = match &definition["model"]["vocab"] {
        Value::Object(vocabulary) => vocabulary.len(),
        Value::Array(vocabulary) => vocabulary.len(),
        _ => 0,
    };
    // Random tokens, and random words of the fixed texts in new combinations.
    let words: Vec<&str> = FIXED.iter().flat_map(|text| text.split_inclusive(' ')).collect();
    for _ in 0..48 {
        let ids: Vec<u32> = (0..24).map(|_| random.below(size) as u32).collect();
        texts.extend(tokenizer.decode(&ids, false).ok());
        let mixed = (0..16).map(|_| words.get(random.below(words.len())).copied().unwrap_or_default());
        let mut mixed: String = mixed.collect();
        if let Some(token) = added.get(random.below(added.len())) {
            mixed.push_str(token);
        }
        texts.push(mixed);
    }
    texts
}

/// A linear congruential generator, so that the texts do not change with the version of a library.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if bound == 0 { 0 } else { (self.0 >> 33) as usize % bound }
    }
}
