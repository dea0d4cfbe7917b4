//! An operation under test: one macro that generated code expands with a row per operation.

/// One module per operation with its subject, its strategies and its tests, and the list of all subjects.
macro_rules! subjects {
    (@take tensor $next:ident) => { crate::take::tensor($next.next()).ok()?? };
    (@take optional_tensor $next:ident) => { crate::take::tensor($next.next()).ok()? };
    (@take dynamic $next:ident) => { crate::take::dynamic($next.next()).ok()?? };
    (@take optional_dynamic $next:ident) => { crate::take::dynamic($next.next()).ok()? };
    (@take texts $next:ident) => { crate::take::text($next.next()).ok()?? };
    (@take optional_texts $next:ident) => { crate::take::text($next.next()).ok()? };
    ($($name:literal => $module:ident($args:ident, $info:ident) [$($output:ident: $kind:ident),*];)*) => {
        $(
            #[doc = concat!("`", $name, "`.")]
            pub mod $module {
                use lz_core::{Arg, OutArg};

                use crate::suite::{Checked, Subject};

                #[doc = concat!("`", $name, "` under test.")]
                pub struct Operation;

                impl Subject for Operation {
                    fn info(&self) -> &'static lz_core::OperationInfo {
                        &lz_ops::$info
                    }

                    fn check(&self, args: &mut [Arg<'_>], outputs: Option<&mut [OutArg<'_>]>) -> Option<Checked> {
                        let typed = lz_ops::$args::from_args(args)?;
                        let call = match typed.check() {
                            Ok(call) => call,
                            Err(error) => return Some(Checked::Refused(error)),
                        };
                        let context = Box::new(call.context());
                        let Some(outputs) = outputs else {
                            return Some(Checked::Right { context, outputs: None });
                        };
                        #[allow(unused_mut, unused_variables, reason = "operations without outputs read none")]
                        let mut next = outputs.iter_mut();
                        $(let $output = crate::subject::subjects!(@take $kind next);)*
                        let fit = call.outputs($($output),*);
                        let context = fit.as_ref().map_or(context, |out| Box::new(call.context_with(out)));
                        Some(Checked::Right { context, outputs: Some(fit.map(drop)) })
                    }
                }

                /// Valid calls, with values.
                pub fn valid() -> impl proptest::strategy::Strategy<Value = crate::valid::Drawn> {
                    crate::strategy::valid(&lz_ops::$info)
                }

                /// Calls with exactly one mistake, and the expected reason.
                pub fn broken() -> impl proptest::strategy::Strategy<Value = crate::broken::Broken> {
                    crate::strategy::broken(&lz_ops::$info)
                }

                /// The workloads of the schema as calls, by name, without the memory that they would need.
                pub fn workloads() -> Result<Vec<(&'static str, crate::call::OwnedCall)>, String> {
                    crate::workload::calls(&crate::assign::Prepared::new(lz_ops::$info.schema()))
                }

                #[cfg(test)]
                mod tests {
                    use super::Operation;

                    #[test]
                    fn metadata() {
                        crate::suite::metadata(&Operation);
                    }

                    #[test]
                    fn broken() {
                        crate::suite::broken(&Operation);
                    }

                    #[test]
                    fn context() {
                        crate::suite::context(&Operation);
                    }

                    #[test]
                    fn values() {
                        crate::values::values(&Operation, crate::values::registered(), &crate::values::claims);
                    }

                    #[test]
                    fn mutants() {
                        crate::mutants::mutants(&Operation);
                    }

                    #[test]
                    fn workloads() {
                        crate::suite::workloads(&Operation);
                    }
                }
            }
        )*

        /// Every operation under test, by name.
        pub static SUBJECTS: [&dyn crate::suite::Subject; { const NAMES: &[&str] = &[$($name),*]; NAMES.len() }] =
            [$(&$module::Operation),*];
    };
}

pub(crate) use subjects;
