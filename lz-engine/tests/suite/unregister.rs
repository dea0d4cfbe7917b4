//! Removing kernels and operations, and replacing operations.

use crate::engine_support::{Shape, attend, engine, run, spec};
use lz_core::{Error, ReasonCode};

#[test]
fn the_next_kernel_runs_after_one_is_removed() {
    let engine = engine([spec("a.x").priority(80), spec("b.x").priority(40)]);
    let shape = Shape::default();
    assert_eq!(run(&engine, &shape).unwrap(), "a.x");
    engine.unregister_kernel("a.x", None).unwrap();
    assert_eq!(run(&engine, &shape).unwrap(), "b.x");
    assert!(engine.registry().backend("a").is_none() && engine.registry().backend("b").is_some());
    engine.unregister_kernel("b.x", Some(&attend().name)).unwrap();
    assert!(matches!(run(&engine, &shape), Err(Error::NoKernel { .. })));
}

#[test]
fn unknown_names_are_errors_with_a_suggestion() {
    let engine = engine([spec("a.first")]);
    let error = engine.unregister_kernel("a.fist", None).unwrap_err();
    assert!(
        error.has(ReasonCode::KernelUnknown) && error.to_string().contains("did you mean `a.first`"),
        "{error}"
    );
    let name = format!("{}x", attend().name);
    for error in [
        engine.unregister_operation(&name).unwrap_err(),
        engine.unregister_kernel("a.first", Some(&name)).unwrap_err(),
        engine.lock(&name, "a.first").unwrap_err(),
        engine.registry().find_operation(&name).unwrap_err(),
    ] {
        assert!(matches!(&error, Error::UnknownOperation { operation, .. } if *operation == name), "{error}");
        assert!(error.has(ReasonCode::OperationUnknown), "{error}");
        assert_eq!(
            error.to_string(),
            format!("unknown operation `{name}`; did you mean `{}`?", attend().name)
        );
    }
    assert_eq!(engine.registry().kernels().count(), 1, "nothing was removed");
}

#[test]
fn an_operation_is_removed_with_its_kernels_and_can_return() {
    let engine = engine([spec("a.x")]);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
    engine.unregister_operation(&attend().name).unwrap();
    assert!(engine.registry().operation(&attend().name).is_none());
    assert_eq!(engine.registry().kernels().count(), 0);
    assert!(matches!(run(&engine, &Shape::default()), Err(Error::NoKernel { .. })));
    engine.replace_operation(attend()).unwrap();
    engine.register([crate::engine_support::entry(spec("b.x"))]).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x");
    // The same operation again changes nothing.
    engine.replace_operation(attend()).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x");
}
