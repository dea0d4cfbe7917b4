//! The Python `run` of an exported operation: it calls this project's own package, whose reference is the truth.

use super::Exporter;
use crate::format::Argument;

impl Exporter<'_> {
    pub(super) fn reference(&self, inputs: &[(String, Argument)]) -> String {
        let operation = self.operation;
        let may_lack = |argument: &Argument| argument.optional == Some(true);
        // Python wants parameters without a default first, definitions call by position: so from the first one
        // that may be left out on, all of them may.
        let first = inputs.iter().position(|(_, argument)| may_lack(argument)).unwrap_or(inputs.len());
        let signature: Vec<String> = inputs
            .iter()
            .enumerate()
            .map(|(at, (name, _))| if at < first { name.clone() } else { format!("{name}=None") })
            .collect();
        let mut passed: Vec<String> =
            inputs.iter().take(first).map(|(name, _)| format!("{name}={name}")).collect();
        for (at, param) in operation.params.iter().enumerate() {
            passed.extend(self.case(at).map(|case| format!("{}=\"{case}\"", param.name)));
        }
        let mut lines = vec![
            "import layerzero as lz".to_owned(),
            String::new(),
            String::new(),
            format!("def run({}):", signature.join(", ")),
        ];
        if first < inputs.len() {
            let given: Vec<String> =
                inputs.iter().skip(first).map(|(name, _)| format!("\"{name}\": {name}")).collect();
            lines.push(format!("    given = {{{}}}", given.join(", ")));
            lines.push(
                "    given = {name: value for name, value in given.items() if value is not None}".to_owned(),
            );
            passed.push("**given".to_owned());
        }
        let call = format!("lz.ops.{}({})", operation.flat_name(), passed.join(", "));
        let changed = operation.inputs.iter().filter(|input| input.read_write);
        let changed: Vec<&str> = changed.map(|input| input.name.as_str()).collect();
        match (operation.outputs.len(), changed.as_slice()) {
            (_, []) => lines.push(format!("    return {call}")),
            (0, changed) => {
                lines.extend([format!("    {call}"), format!("    return {}", changed.join(", "))])
            }
            (1, changed) => {
                lines.extend([
                    format!("    made = {call}"),
                    format!("    return made, {}", changed.join(", ")),
                ]);
            }
            (_, changed) => {
                lines.extend([
                    format!("    made = {call}"),
                    format!("    return *made, {}", changed.join(", ")),
                ]);
            }
        }
        lines.join("\n") + "\n"
    }
}
