//! Names of a `Definition` made to fit our language, and words guessed from names.

use std::collections::BTreeSet;

use lz_schema::is_free_name;

/// Gives out names: each once, spelled as the language wants them.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: BTreeSet<String>,
}

impl Names {
    /// Keeps a name from being given out.
    pub(super) fn reserve(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// A free name as near to `name` as possible; `kind` is appended where it is taken.
    pub(super) fn claim(&mut self, name: &str, kind: &str) -> String {
        let plain = snake(name);
        let candidates = [plain.clone(), format!("{plain}_{kind}")];
        let numbered = (2_u64..).map(|number| format!("{plain}_{kind}{number}"));
        let free = |name: &String| is_free_name(name) && !self.taken.contains(name);
        // The numbers never end, so there always is one.
        let name = candidates.into_iter().chain(numbered).find(free).unwrap_or(plain);
        self.taken.insert(name.clone());
        name
    }
}

/// Lower-case letters, digits and underscores, beginning with a letter.
pub(super) fn snake(name: &str) -> String {
    let fits = |character: char| {
        let character = character.to_ascii_lowercase();
        if character.is_ascii_lowercase() || character.is_ascii_digit() { character } else { '_' }
    };
    let snake: String = name.chars().map(fits).collect();
    if snake.starts_with(|first: char| first.is_ascii_lowercase()) { snake } else { format!("n_{snake}") }
}

/// The name of a dtype variable for an argument: `kv_indptr` gives `KvIndptr`.
pub(super) fn variable(name: &str) -> String {
    let words = name.split('_').filter(|word| !word.is_empty());
    words
        .map(|word| {
            let mut letters = word.chars();
            letters
                .next()
                .map_or(String::new(), |first| format!("{}{}", first.to_ascii_uppercase(), letters.as_str()))
        })
        .collect()
}

/// What an axis probably means; only documentation and tuning look at it.
pub(super) fn role(name: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&["vocab"]) {
        "vocab"
    } else if has(&["dim", "hidden", "rank", "width"]) {
        "feature"
    } else if has(&["head"]) {
        "heads"
    } else if has(&["page"]) {
        "page"
    } else if has(&["block"]) {
        "block"
    } else if has(&["batch"]) {
        "batch"
    } else if has(&["seq", "len", "total", "token"]) {
        "length"
    } else {
        "count"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let mut names = Names::default();
        names.reserve("layout");
        assert_eq!(names.claim("A", "tensor"), "a");
        assert_eq!(names.claim("a", "axis"), "a_axis");
        assert_eq!(names.claim("a", "axis"), "a_axis2");
        assert_eq!(names.claim("lambda", "param"), "lambda_param");
        assert_eq!(names.claim("Layout", "tensor"), "layout_tensor");
        assert_eq!(names.claim("1", "axis"), "n_1");
        assert_eq!(names.claim("größe", "axis"), "gr__e");
        assert_eq!(variable("kv_indptr"), "KvIndptr");
        assert_eq!(role("num_kv_heads"), "heads");
        assert_eq!(role("head_dim"), "feature");
    }
}
