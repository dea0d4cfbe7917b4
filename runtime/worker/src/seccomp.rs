//! The system call filters of workers, as classic BPF programs.

use std::io;

/// The offset of the number of the system call, of the architecture, and of the low half of an argument in `seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xC000_00B7;

/// `renameat`: the `libc` crate has no number of it for aarch64.
#[cfg(target_arch = "x86_64")]
const RENAMEAT: libc::c_long = libc::SYS_renameat;
#[cfg(target_arch = "aarch64")]
const RENAMEAT: libc::c_long = 38;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the system call filters of workers are written for x86-64 and aarch64");

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const fn error(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number.cast_unsigned()
}

/// What every confined worker is denied: access to other processes, kernel interfaces that reach further than a kernel of an operation
/// needs, and system calls that bypass the filter.
const ALWAYS_DENIED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
];

/// What `strict` denies in addition: files, sockets, programs.
const STRICTLY_DENIED: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    RENAMEAT,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_inotify_init1,
    libc::SYS_fanotify_init,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
];

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn answer(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Skips `if_true` instructions if the loaded word has the relation to `k`, otherwise `if_false`.
fn jump(relation: u32, k: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | relation | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: if_true, jf: if_false, k }
}

/// The filter of a level.
fn program(strict: bool, process: u32) -> Vec<libc::sock_filter> {
    let mut program = vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, THIS_ARCHITECTURE, 1, 0),
        answer(error(libc::EPERM)),
        load(NUMBER),
    ];
    // System calls of the x32 ABI have other numbers.
    #[cfg(target_arch = "x86_64")]
    program.extend([jump(libc::BPF_JGE, 0x4000_0000, 0, 1), answer(error(libc::EPERM))]);
    let mut deny = |number: &libc::c_long, errno: i32| {
        program.extend([jump(libc::BPF_JEQ, *number as u32, 0, 1), answer(error(errno))]);
    };
    ALWAYS_DENIED.iter().for_each(|number| deny(number, libc::EPERM));
    if strict {
        STRICTLY_DENIED.iter().for_each(|number| deny(number, libc::EPERM));
        // The C library falls back to `clone`, whose flags a filter can read.
        deny(&libc::SYS_clone3, libc::ENOSYS);
    }
    // The condition on an argument: if the number matches, the argument is compared and the filter ends.
    let mut allow_only = |number: libc::c_long, index: u32, relation: u32, value: u32| {
        program.extend([
            jump(libc::BPF_JEQ, number as u32, 0, 4),
            load(argument(index)),
            jump(relation, value, 0, 1),
            answer(ALLOW),
            answer(error(libc::EPERM)),
        ]);
    };
    if strict {
        // Threads, but no processes; no family is 0xffff.
        allow_only(libc::SYS_clone, 0, libc::BPF_JSET, libc::CLONE_THREAD.cast_unsigned());
        allow_only(libc::SYS_socket, 0, libc::BPF_JEQ, u32::MAX);
    } else {
        allow_only(libc::SYS_socket, 0, libc::BPF_JEQ, libc::AF_UNIX.cast_unsigned());
    }
    // Signals to itself only, as `abort` sends.
    allow_only(libc::SYS_kill, 0, libc::BPF_JEQ, process);
    allow_only(libc::SYS_tgkill, 0, libc::BPF_JEQ, process);
    program.push(answer(ALLOW));
    program
}

/// Installs the filter of a level in all threads of this process. `PR_SET_NO_NEW_PRIVS` must be set.
pub(crate) fn install(strict: bool) -> io::Result<()> {
    let mut program = program(strict, std::process::id());
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
    // SAFETY: a program of that length, which the kernel checks and copies.
    let outcome =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) };
    match outcome {
        0 => Ok(()),
        error if error > 0 => Err(io::Error::other(format!("thread {error} has another filter"))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: u32 = 4711;
    const DENIED: u32 = error(libc::EPERM);

    /// What the kernel does with a filter, for the instructions that [`program`] writes.
    fn decide(program: &[libc::sock_filter], architecture: u32, number: u32, arguments: [u32; 2]) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let code = u32::from(code);
            let jump_if = |holds: bool| usize::from(if holds { jt } else { jf });
            if code == libc::BPF_RET | libc::BPF_K {
                return k;
            } else if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                word = match k {
                    NUMBER => number,
                    ARCHITECTURE => architecture,
                    _ if k == argument(0) => arguments[0],
                    _ if k == argument(1) => arguments[1],
                    _ => panic!("the filter loads offset {k}"),
                };
            } else if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K {
                at += jump_if(word == k);
            } else if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K {
                at += jump_if(word >= k);
            } else if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K {
                at += jump_if(word & k != 0);
            } else {
                panic!("unknown instruction {code:#x}");
            }
        }
    }

    fn verdict(strict: bool, number: libc::c_long, first: u32) -> u32 {
        decide(&program(strict, PROCESS), THIS_ARCHITECTURE, number as u32, [first, 0])
    }

    #[test]
    fn system_calls_of_another_architecture_are_denied() {
        for strict in [false, true] {
            let program = program(strict, PROCESS);
            assert_eq!(decide(&program, THIS_ARCHITECTURE ^ 1, libc::SYS_read as u32, [0, 0]), DENIED);
            assert_eq!(decide(&program, THIS_ARCHITECTURE, libc::SYS_read as u32, [0, 0]), ALLOW);
        }
        let expected = if cfg!(target_arch = "x86_64") { DENIED } else { ALLOW };
        assert_eq!(verdict(false, 0x4000_0000, 0), expected, "the x32 ABI");
    }

    #[test]
    fn levels_deny_what_they_list() {
        for &number in ALWAYS_DENIED {
            assert_eq!((verdict(false, number, 0), verdict(true, number, 0)), (DENIED, DENIED), "{number}");
        }
        for &number in STRICTLY_DENIED {
            assert_eq!((verdict(false, number, 0), verdict(true, number, 0)), (ALLOW, DENIED), "{number}");
        }
        for number in
            [libc::SYS_write, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_futex, libc::SYS_exit_group]
        {
            assert_eq!((verdict(false, number, 0), verdict(true, number, 0)), (ALLOW, ALLOW), "{number}");
        }
    }

    #[test]
    fn arguments_are_compared() {
        let thread = libc::CLONE_THREAD.cast_unsigned() | 0x100;
        assert_eq!(
            (verdict(true, libc::SYS_clone, thread), verdict(true, libc::SYS_clone, 17)),
            (ALLOW, DENIED)
        );
        assert_eq!(verdict(true, libc::SYS_clone3, 0), error(libc::ENOSYS));
        let (local, network) = (libc::AF_UNIX.cast_unsigned(), libc::AF_INET.cast_unsigned());
        assert_eq!(
            (verdict(false, libc::SYS_socket, local), verdict(false, libc::SYS_socket, network)),
            (ALLOW, DENIED)
        );
        assert_eq!(verdict(true, libc::SYS_socket, local), DENIED);
        for number in [libc::SYS_kill, libc::SYS_tgkill] {
            assert_eq!((verdict(false, number, PROCESS), verdict(false, number, 1)), (ALLOW, DENIED));
        }
    }
}
