//! Every code a diagnostic can carry, with one line that says what it means.
//!
//! A code is never renumbered and never reused: people search for them. Each has a fixture in `tests/ui/fail`; those of policies and
//! contracts, from `LZ0601` on, have theirs with the engine, which knows operations.

macro_rules! codes {
    ($($name:ident $id:literal $explanation:literal;)*) => {
        /// What is wrong, as a stable code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $explanation] $name,)* }

        impl Code {
            /// Every code, in the order of the numbers.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The stable name, `LZ0103`.
            pub const fn id(self) -> &'static str {
                match self { $(Code::$name => $id,)* }
            }

            /// One line that says what it means.
            pub const fn explanation(self) -> &'static str {
                match self { $(Code::$name => $explanation,)* }
            }
        }
    };
}

codes! {
    // The file and its form.
    YamlSyntax "LZ0001" "The file is not valid YAML.";
    YamlFeature "LZ0002" "Schemas use plain YAML: no tags, anchors, aliases or second documents.";
    UnknownKey "LZ0003" "The language is closed: this key is not part of it here.";
    DuplicateKey "LZ0004" "A key is written twice in one mapping.";
    MissingKey "LZ0005" "A key that is needed here is not there.";
    WrongForm "LZ0006" "A list, a mapping or a single value stands where another form is needed.";
    CutAtComma "LZ0007" "YAML cuts an unquoted value at a comma inside braces; the expression needs quotes.";
    Empty "LZ0008" "A text, list or mapping that must say something is empty.";
    UnknownWord "LZ0009" "The word is not one of the closed list that is allowed here.";
    BadNumber "LZ0010" "A number is not of the kind or in the range that is needed here.";
    ConflictingKeys "LZ0011" "Two keys cannot stand together, or a key has no meaning for this kind of thing.";

    // Names.
    BadName "LZ0101" "A name is not spelled as names of its kind are.";
    NameClash "LZ0102" "Two things that share one set of names have the same name.";
    UndefinedAxis "LZ0103" "A shape or expression names an axis that is not defined.";
    UnusedAxis "LZ0104" "An axis is defined but no shape, parameter or constraint uses it.";
    ReservedName "LZ0105" "A name is a keyword of a language that code is generated for, or a word of this one.";
    DuplicateOperation "LZ0106" "Two files define the same operation.";
    PathDisagrees "LZ0107" "The operation's name does not agree with the path of its file.";
    AliasIsOperation "LZ0108" "An alias has the name of an operation.";
    AliasUnknownParam "LZ0109" "An alias fixes a parameter that the operation does not have.";
    AliasValue "LZ0110" "An alias fixes a parameter to a value that the parameter cannot have.";
    UnknownReason "LZ0111" "A constraint names a reason code that `schemas/reasons.yaml` does not have.";
    UnknownSemantics "LZ0112" "A key of `semantics` is not one of the closed list.";
    SemanticsValue "LZ0113" "The value of a key of `semantics` is not the one that the language knows.";
    UndefinedParam "LZ0114" "A parameter is named that is not defined.";
    ByNotEnum "LZ0115" "Cases are chosen by a parameter that is not an enum.";
    UnknownCase "LZ0116" "A case is named that the enum does not have.";
    MissingCase "LZ0117" "A case of the enum has no entry.";
    RepeatedItem "LZ0118" "A list that stands for a set has the same entry twice.";
    UndefinedInput "LZ0119" "An input is named that is not defined, or `given` is asked of one that is always there.";

    // Expressions.
    BadExpression "LZ0201" "The expression cannot be parsed.";
    UndefinedName "LZ0202" "The expression uses a name that is not defined.";
    NotVisibleHere "LZ0203" "The expression uses a name that exists but may not be used in this place.";
    IllTyped "LZ0211" "The types in the expression do not fit together.";
    WrongType "LZ0212" "The expression has another type than is needed here.";
    WhenNotBool "LZ0213" "The condition of an output is not a bool.";
    BadRange "LZ0214" "The range of a parameter is not one or two comparisons with constants.";
    BadDefault "LZ0215" "The default of a parameter does not fit its type or range.";

    // Element types.
    UnknownDtype "LZ0301" "The element type does not exist.";
    UndefinedTypeVariable "LZ0302" "The dtype variable is not defined in `types`.";
    UnusedTypeVariable "LZ0303" "A dtype variable is defined but nothing uses it.";
    UnboundTypeVariable "LZ0304" "A dtype variable is used by outputs only, so no call could say what it is.";
    ImpossibleTolerance "LZ0305" "A tolerance is given for a dtype that no output can have.";
    MissingTolerance "LZ0306" "A floating dtype that an output can have has no tolerance.";

    // Axes and shapes.
    UnboundAxis "LZ0401" "An axis is used that no input binds, so no call could say how large it is.";
    PackTwice "LZ0402" "A shape has more than one pack, so sizes could not be told apart.";
    PackNotSpread "LZ0403" "A pack axis stands in a shape without its three dots.";
    SpreadOfSingle "LZ0404" "Three dots follow something that is not a pack axis.";
    BucketOrder "LZ0405" "The bounds of buckets do not ascend.";
    FuzzEmpty "LZ0406" "What property tests should draw from is empty or not a range.";
    DynamicAxis "LZ0407" "An axis that is known only after the run is used where its size is needed before.";

    // Workloads.
    WorkloadMissing "LZ0501" "A workload leaves out a value that a call needs.";
    WorkloadUnknown "LZ0502" "A workload gives a value for something that the operation does not have.";
    WorkloadValue "LZ0503" "A workload gives a value that its axis, dtype variable or parameter cannot have.";
    WorkloadViolates "LZ0504" "A workload breaks a constraint of its own operation.";
    WorkloadFails "LZ0505" "A default, shape or constraint cannot be evaluated for a workload.";

    // Policies.
    PolicyVersion "LZ0601" "The policy is written in a version of the language that is not known.";
    UnknownOperation "LZ0602" "An operation or alias is named that is not known.";
    UnknownProfile "LZ0603" "A profile is asked for that the policy does not define.";
    BadMatch "LZ0604" "A value of `match` is not something that can be compared with.";
    EmptyRule "LZ0605" "A rule does nothing, or does not say when.";
    BadPattern "LZ0606" "A kernel, a backend or a pattern of them is not spelled as one.";
    BadVariable "LZ0607" "An environment variable has a value that it cannot have.";

    // Contracts: descriptors, dispatch tables, lockfiles.
    JsonSyntax "LZ0701" "The file is not valid JSON.";
    ContractVersion "LZ0702" "The file is written for a version of the contract that is not known.";
    DuplicateKernel "LZ0703" "Two kernels of one backend have the same id.";
    MissingLimit "LZ0704" "A limit is left out that the operation needs; `null` says that there is none.";
    NoSuchSize "LZ0705" "A limit is given for something that the operation does not have.";
    NotABucket "LZ0706" "A plan names a bucket that the table does not have, or the same one as another plan.";
    BadTree "LZ0707" "A node of a decision tree is not exactly one of a decision and the two kinds of split.";
    DigestMismatch "LZ0708" "The digest that a file carries is not that of its content.";
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_are_explained() {
        assert!(Code::ALL.windows(2).all(|pair| pair[0].id() < pair[1].id()));
        assert!(Code::ALL.iter().all(|code| code.explanation().ends_with('.')));
    }
}
