//! The primitives of graphs under test: run-time operations, which only the interpreter checks.

use lz_core::{Arg, OperationInfo, OutArg, check, dynamic};

use crate::suite::{Checked, Subject};

/// A primitive under test.
pub struct Primitive(pub &'static OperationInfo);

impl Subject for Primitive {
    fn info(&self) -> &'static OperationInfo {
        self.0
    }

    fn check(&self, args: &mut [Arg<'_>], outputs: Option<&mut [OutArg<'_>]>) -> Option<Checked> {
        let schema = self.0.schema();
        let bound = match check::check_call(schema, args, None) {
            Ok(bound) => bound,
            Err(error) => return Some(Checked::Refused(error)),
        };
        let valid =
            outputs.as_deref().map(|outputs| check::check_call(schema, args, Some(outputs)).map(drop));
        let context = Box::new(dynamic::context(schema, &bound, args, outputs.as_deref()).ok()?);
        Some(Checked::Right { context, outputs: valid })
    }

    fn is_dynamic(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Primitive;
    use crate::{suite, values};

    macro_rules! primitives {
        ($($module:ident = $name:ident;)*) => {
            $(mod $module {
                use super::*;

                #[test]
                fn values() {
                    values::values(&Primitive(*lz_primitives::$name), values::registered(), &values::claims);
                }

                #[test]
                fn workloads() {
                    suite::workloads(&Primitive(*lz_primitives::$name));
                }
            })*

            #[test]
            fn every_primitive_is_tested() {
                let tested = [$(lz_primitives::$name.name.as_ref()),*];
                let all: Vec<&str> = lz_primitives::all().iter().map(|operation| operation.name.as_ref()).collect();
                assert_eq!(all, tested);
            }
        };
    }

    primitives! {
        activation = ACTIVATION;
        arange = ARANGE;
        arg_reduce = ARG_REDUCE;
        binary = BINARY;
        binary_int = BINARY_INT;
        binary_int_scalar = BINARY_INT_SCALAR;
        binary_scalar = BINARY_SCALAR;
        cast = CAST;
        compare = COMPARE;
        compare_scalar = COMPARE_SCALAR;
        conv2d = CONV2D;
        copy = COPY;
        cumsum = CUMSUM;
        gather = GATHER;
        gather_elements = GATHER_ELEMENTS;
        matmul = MATMUL;
        pool2d = POOL2D;
        reduce = REDUCE;
        reduce_int = REDUCE_INT;
        scatter = SCATTER;
        scatter_elements = SCATTER_ELEMENTS;
        softmax = SOFTMAX;
        test = TEST;
        topk = TOPK;
        unary = UNARY;
        unary_int = UNARY_INT;
        select = WHERE;
    }
}
