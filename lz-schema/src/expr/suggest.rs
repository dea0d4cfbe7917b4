//! "Did you mean": the nearest known name, when one is near enough to be worth saying.

/// The candidate nearest to `name`, or `None` when none is near. Differences of case cost nothing.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let wanted = name.to_lowercase();
    // A third of the name may be wrong; anything further is a different word.
    let allowed = (wanted.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        assert_eq!(nearest("head_dims", ["heads", "head_dim"]), Some("head_dim".into()));
        assert_eq!(nearest("bshd", ["BHSD", "BSHD"]), Some("BSHD".into()));
        assert_eq!(nearest("True", ["true", "false"]), Some("true".into()));
        assert_eq!(nearest("q", ["k"]), None, "a name of one letter resembles nothing");
        assert_eq!(nearest("window", ["heads", "batch"]), None);
    }
}
