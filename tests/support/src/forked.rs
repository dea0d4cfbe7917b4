//! Running a test in a forked child.

/// Seconds after which a child that hangs is killed.
const LIMIT: u32 = 10;

/// Runs `body` in a forked child and returns whether it returned true.
pub fn in_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses only the code under test and ends with `_exit`, so nothing of the parent is dropped in it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(LIMIT);
            libc::_exit(i32::from(!body()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}
