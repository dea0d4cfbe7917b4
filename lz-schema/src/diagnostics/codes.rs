//! All diagnostic codes, each with a one-line explanation.
//!
//! A code is never renumbered and never reused, because users search for it. Each has a fixture in `tests/ui/fail`; codes from
//! `LZ0601` on (policies and contracts) are tested with the engine, which provides the operations.

macro_rules! codes {
    ($($name:ident $id:literal $explanation:literal;)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $explanation] $name,)* }

        impl Code {
            /// All codes, in numerical order.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The stable name, `LZ0103`.
            pub const fn id(self) -> &'static str {
                match self { $(Code::$name => $id,)* }
            }

            /// A one-line explanation.
            pub const fn explanation(self) -> &'static str {
                match self { $(Code::$name => $explanation,)* }
            }
        }
    };
}

codes! {
    // File and structure.
    YamlSyntax "LZ0001" "The file is not valid YAML.";
    YamlFeature "LZ0002" "Schemas use plain YAML: no tags, anchors, aliases or second documents.";
    UnknownKey "LZ0003" "The key is not allowed here.";
    DuplicateKey "LZ0004" "A mapping contains the same key twice.";
    MissingKey "LZ0005" "A required key is missing.";
    WrongForm "LZ0006" "The value has the wrong structure: expected another of list, mapping or single value.";
    CutAtComma "LZ0007" "YAML splits an unquoted value at a comma inside braces; the expression needs quotes.";
    Empty "LZ0008" "A text, list or mapping must not be empty.";
    UnknownWord "LZ0009" "The word is not one of the allowed words.";
    BadNumber "LZ0010" "A number has the wrong type or is out of range.";
    ConflictingKeys "LZ0011" "Two keys exclude each other, or a key does not apply to this kind of item.";

    // Names.
    BadName "LZ0101" "A name has invalid spelling.";
    NameClash "LZ0102" "Two items in one namespace have the same name.";
    UndefinedAxis "LZ0103" "A shape or expression uses an undefined axis.";
    UnusedAxis "LZ0104" "An axis is defined but no shape, parameter or constraint uses it.";
    ReservedName "LZ0105" "A name is a keyword of a target language or a reserved word of the schema language.";
    DuplicateOperation "LZ0106" "Two files define the same operation.";
    PathDisagrees "LZ0107" "The operation's name does not match the path of its file.";
    AliasIsOperation "LZ0108" "An alias has the name of an operation.";
    AliasUnknownParam "LZ0109" "An alias fixes a parameter that the operation does not have.";
    AliasValue "LZ0110" "An alias fixes a parameter to a value that the parameter cannot have.";
    UnknownReason "LZ0111" "A constraint uses an unknown reason code; `lz docs operating` lists all.";
    UnknownSemantics "LZ0112" "The key of `semantics` is not one of the allowed keys.";
    SemanticsValue "LZ0113" "The value of a key of `semantics` is not one of the allowed values.";
    UndefinedParam "LZ0114" "The parameter is not defined.";
    ByNotEnum "LZ0115" "Cases depend on a parameter that is not an enum.";
    UnknownCase "LZ0116" "The enum does not have this case.";
    MissingCase "LZ0117" "A case of the enum has no entry.";
    RepeatedItem "LZ0118" "A list contains the same entry twice.";
    UndefinedInput "LZ0119" "The input is not defined, or `given` is used with a required input.";
    UnknownGeneral "LZ0120" "A specialization refers to an operation that does not exist.";
    SpecializationChain "LZ0121" "A specialization refers to an operation that is itself a specialization.";
    UnequalAxes "LZ0122" "`where` equates two axes that cannot be equal.";
    InheritedKey "LZ0123" "A specialization states something that it inherits from the general operation.";
    DequantizesMismatch "LZ0124" "`dequantizes` does not fit the operations that it refers to.";

    // Expressions.
    BadExpression "LZ0201" "The expression cannot be parsed.";
    UndefinedName "LZ0202" "The expression uses a name that is not defined.";
    NotVisibleHere "LZ0203" "The expression uses a name that is not allowed in this context.";
    IllTyped "LZ0211" "The types in the expression are incompatible.";
    WrongType "LZ0212" "The expression has the wrong type.";
    WhenNotBool "LZ0213" "The condition of an output is not a bool.";
    BadRange "LZ0214" "The range of a parameter is not one or two comparisons with constants.";
    BadDefault "LZ0215" "The default of a parameter does not match its type or range.";

    // Element types.
    UnknownDtype "LZ0301" "The element type does not exist.";
    UndefinedTypeVariable "LZ0302" "The dtype variable is not defined in `types`.";
    UnusedTypeVariable "LZ0303" "A dtype variable is defined but not used.";
    UnboundTypeVariable "LZ0304" "A dtype variable is used only by outputs, so no input binds it.";
    ImpossibleTolerance "LZ0305" "A tolerance is given for a dtype that no output can have.";
    MissingTolerance "LZ0306" "A floating-point dtype that an output can have has no tolerance.";

    // Axes and shapes.
    UnboundAxis "LZ0401" "No input binds the axis, so its size is unknown in a call.";
    PackTwice "LZ0402" "A shape has more than one pack, so it is ambiguous.";
    PackNotSpread "LZ0403" "A pack axis is used in a shape without three dots.";
    SpreadOfSingle "LZ0404" "Three dots follow an axis that is not a pack.";
    BucketOrder "LZ0405" "The bucket bounds do not ascend.";
    FuzzEmpty "LZ0406" "The sizes for property tests are empty or not a range.";
    DynamicAxis "LZ0407" "A dynamic axis is used where its size is needed before the call.";

    // Workloads.
    WorkloadMissing "LZ0501" "A workload lacks a value that a call requires.";
    WorkloadUnknown "LZ0502" "A workload gives a value to an item that the operation does not have.";
    WorkloadValue "LZ0503" "A workload gives a value that its axis, dtype variable or parameter cannot have.";
    WorkloadViolates "LZ0504" "A workload violates a constraint of its operation.";
    WorkloadFails "LZ0505" "A default, shape or constraint cannot be evaluated for a workload.";

    // Policies.
    PolicyVersion "LZ0601" "The version of the policy language is not supported.";
    UnknownOperation "LZ0602" "The operation or alias does not exist.";
    UnknownProfile "LZ0603" "The policy does not define the requested profile.";
    BadMatch "LZ0604" "A value of `match` cannot be compared.";
    EmptyRule "LZ0605" "A rule has no action or no condition.";
    BadPattern "LZ0606" "A name or pattern of kernels or backends has invalid spelling.";
    BadVariable "LZ0607" "An environment variable has an invalid value.";

    // Contracts: descriptors, dispatch tables, lockfiles.
    JsonSyntax "LZ0701" "The file is not valid JSON.";
    ContractVersion "LZ0702" "The version of the contract is not supported.";
    DuplicateKernel "LZ0703" "Two kernels of one backend have the same id.";
    MissingLimit "LZ0704" "A required limit is missing; `null` means no limit.";
    NoSuchSize "LZ0705" "A limit refers to an item that the operation does not have.";
    NotABucket "LZ0706" "A plan refers to a bucket that the table does not have, or that another plan already uses.";
    BadTree "LZ0707" "A node of a decision tree must be exactly one of: a decision, or one of the two kinds of split.";
    DigestMismatch "LZ0708" "The digest in the file does not match its content.";
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
