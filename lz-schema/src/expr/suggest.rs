//! Suggestions for misspelled names.

/// The candidate most similar to `name`, ignoring case; `None` if none is similar.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let lowercase = name.to_lowercase();
    // The edit distance may be up to a third of the length.
    let allowed = (lowercase.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (strsim::damerau_levenshtein(&lowercase, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn only_similar_names_are_suggested() {
        assert_eq!(nearest("head_dims", ["heads", "head_dim"]), Some("head_dim".into()));
        assert_eq!(nearest("bshd", ["BHSD", "BSHD"]), Some("BSHD".into()));
        assert_eq!(nearest("True", ["true", "false"]), Some("true".into()));
        assert_eq!(nearest("q", ["k"]), None, "names of one letter have no suggestions");
        assert_eq!(nearest("window", ["heads", "batch"]), None);
    }
}
