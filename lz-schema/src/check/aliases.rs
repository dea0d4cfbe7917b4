//! Validates `aliases`: alternative names, and the parameters that they fix.

use super::{Checker, is_dotted_name};
use crate::diagnostics::{Code, nearest};
use crate::model::{Alias, Param};
use crate::raw::Named;
use crate::raw::language::RawOperation;
use crate::source::{Scalar, Spanned};

impl Checker<'_> {
    pub(super) fn aliases(&mut self, raw: &RawOperation, params: &[Option<Param>]) -> Vec<Alias> {
        let mut aliases = Vec::new();
        for entry in raw.aliases.iter().flat_map(|named| &named.entries) {
            if !is_dotted_name(&entry.name.value) {
                let message = format!("`{}` is not a valid operation name", entry.name.value);
                self.sink
                    .error(Code::BadName, entry.name.span, message)
                    .note("expected words of lower-case letters, digits and underscores, joined by dots");
            }
            let fixes = entry.value.iter().flat_map(|fixes| self.fixes(fixes, params)).collect();
            aliases.push(Alias { name: entry.name.value.clone(), fixes });
        }
        aliases
    }

    fn fixes(
        &mut self,
        raw: &Named<Spanned<Scalar>>,
        params: &[Option<Param>],
    ) -> Vec<(usize, crate::model::Constant)> {
        let mut fixes = Vec::new();
        for entry in &raw.entries {
            let Some(index) = self.symbols.param(&entry.name.value) else {
                let names = self.symbols.params.iter().map(|param| param.name.as_str());
                let near = nearest(&entry.name.value, names).map(str::to_owned);
                let message = format!("the operation has no parameter `{}`", entry.name.value);
                self.sink.error(Code::AliasUnknownParam, entry.name.span, message).suggest(near);
                continue;
            };
            let (Some(Some(param)), Some(value)) = (params.get(index), &entry.value) else { continue };
            match self.constant(index, param, &value.value) {
                Ok(constant) => fixes.push((index, constant)),
                Err(invalid) => {
                    let message = format!("`{}` {}", param.name, invalid.problem);
                    self.sink.error(Code::AliasValue, value.span, message).suggest(invalid.suggestion);
                }
            }
        }
        fixes
    }
}
