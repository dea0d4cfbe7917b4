//! Chat templates: where they come from, which one is used, and that none runs without bound.

use lz_test_support::Folder;
use lz_tokenize::{ChatError, ChatTemplates};

const HELLO: &str = r#"{"messages": [{"role": "user", "content": "Hi <ü>"}], "add_generation_prompt": true}"#;

fn rendered(template: &str) -> Result<String, ChatError> {
    ChatTemplates::new(template).render(HELLO, None)
}

#[test]
fn conversations_are_rendered() {
    let template = "{{ bos_token }}{% for message in messages %}\n\
                    {%- if loop.first %}<{{ message['role'] }}>{% endif %}\n\
                    {{ message.content | trim }}{{ '\\n' }}\n\
                    {%- endfor %}\n\
                    {% if add_generation_prompt %}\n<assistant>\n{% endif %}\n";
    assert_eq!(rendered(template).unwrap(), "<user>Hi <ü>\n<assistant>\n");
    for (template, expected) in [
        (
            "{{ true }} {{ none }} {{ 1.0 }} {{ [1, 'a', none] }} {{ {'a': true} }}",
            "True None 1.0 [1, 'a', None] {'a': True}",
        ),
        ("{{ messages | tojson }}", r#"[{"role": "user", "content": "Hi <ü>"}]"#),
        (
            "{{ {'b': 1, 'a': [2, 3]} | tojson(indent=2, sort_keys=true) }}",
            "{\n  \"a\": [\n    2,\n    3\n  ],\n  \"b\": 1\n}",
        ),
        ("{{ {'b': 'ü'} | tojson(ensure_ascii=true, separators=(',', ':')) }}", r#"{"b":"\u00fc"}"#),
        ("{{ tools is none and documents is none and nothing is not defined }}", "True"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        (
            "{{ 'A b'.lower().split(' ') | last }}{{ messages[0].get('x', 'y') }}{{ messages[::-1] | length }}",
            "by1",
        ),
        (
            "{% set ns = namespace(n=1) %}{% for k, v in messages[0].items() %}{% set ns.n = ns.n + 1 %}{{ k }}{% endfor %}{{ ns.n }}",
            "rolecontent3",
        ),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('a') }}", "aa"),
        ("{{ true | string }}", "True"),
    ] {
        assert_eq!(rendered(template).as_deref(), Ok(expected), "{template}");
    }
    let year: u32 = rendered("{{ strftime_now('%Y') }}").unwrap().parse().unwrap();
    assert!(year >= 2024);
}

#[test]
fn templates_come_from_the_files_of_a_folder() {
    let temporary = Folder::new();
    let folder = temporary.path();
    std::fs::create_dir(folder.join("additional_chat_templates")).unwrap();
    let missing = ChatTemplates::from_folder(folder).unwrap().render(HELLO, None).unwrap_err();
    assert!(missing.to_string().contains("has no chat template"), "{missing}");
    let config = r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
        "chat_template": [{"name": "default", "template": "{{ bos_token }}A{{ eos_token }}{{ pad_token }}"}, {"name": "tool_use", "template": "{{ tools[0] }}"}]}"#;
    std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
    let read = ChatTemplates::from_folder(folder).unwrap();
    assert_eq!(ChatTemplates::from_config(&read.to_config()).unwrap(), read);
    assert_eq!(read.render(HELLO, None).unwrap(), "<s>A</s>");
    assert_eq!(read.render(r#"{"messages": [], "tools": ["x"], "bos_token": "b"}"#, None).unwrap(), "x");
    assert_eq!(
        read.render(r#"{"messages": [], "tools": ["x"], "bos_token": "b"}"#, Some("default")).unwrap(),
        "bA</s>"
    );
    std::fs::write(folder.join("chat_template.jinja"), "B").unwrap();
    std::fs::write(folder.join("additional_chat_templates/short.jinja"), "C").unwrap();
    let read = ChatTemplates::from_folder(folder).unwrap();
    assert_eq!(read.names().collect::<Vec<_>>(), ["default", "short", "tool_use"]);
    assert_eq!(read.render(HELLO, None).unwrap(), "B");
    assert_eq!(read.render(HELLO, Some("short")).unwrap(), "C");
    assert_eq!(read.render(HELLO, Some("{{ 1 }}")).unwrap(), "1");
    let unknown = read.render(HELLO, Some("long")).unwrap_err();
    assert!(
        unknown.to_string().contains("no chat template \"long\"; it has default, short, tool_use"),
        "{unknown}"
    );
    std::fs::write(folder.join("tokenizer_config.json"), "{").unwrap();
    assert!(matches!(ChatTemplates::from_folder(folder), Err(ChatError::File(_))));
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"chat_template": 3}"#).unwrap();
    assert!(matches!(ChatTemplates::from_folder(folder), Err(ChatError::File(_))));
}

#[test]
fn errors_say_what_is_wrong() {
    let refused = rendered("{{ raise_exception('roles must ' + 'alternate') }}").unwrap_err();
    assert_eq!(refused, ChatError::Refused("roles must alternate".to_owned()));
    // Also inside of a macro.
    let inner = rendered("{% macro m() %}{{ raise_exception('x') }}{% endmacro %}{{ m() }}").unwrap_err();
    assert_eq!(inner, ChatError::Refused("x".to_owned()));
    let invalid = rendered("a\n{% if %}").unwrap_err();
    assert!(matches!(&invalid, ChatError::Template(message) if message.contains("line 2")), "{invalid}");
    for template in
        ["{{ messages.x.y }}", "{{ 'a'.nothing() }}", "{{ strftime_now(3, 4) }}", "{% include 'x' %}"]
    {
        assert!(matches!(rendered(template), Err(ChatError::Template(_))), "{template}");
    }
    for variables in ["", "[]", "{}", r#"{"messages": "a"}"#] {
        let found = ChatTemplates::new("a").render(variables, None);
        assert!(matches!(found, Err(ChatError::Variables(_))), "{variables}");
    }
}

/// Templates come with models: none may run for long, write without bound, or overflow the stack.
#[test]
fn no_template_runs_without_bound() {
    let loops = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(rendered(loops), Err(ChatError::Unbounded(_))));
    let writes = "{% set x = 'a' * 50000000 %}{% for a in range(100) %}{{ x }}{% endfor %}";
    assert!(
        matches!(rendered(writes), Err(ChatError::Unbounded(_))),
        "{:?}",
        rendered(writes).map(|text| text.len())
    );
    let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(rendered(recursive), Err(ChatError::Template(_))));
    let nested =
        "{% set ns = namespace(x=[]) %}{% for a in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    assert_eq!(rendered(nested).as_deref(), Ok(""));
    for printed in ["{{ ns.x }}", "{{ ns.x | tojson }}"] {
        assert!(matches!(rendered(&format!("{nested}{printed}")), Err(ChatError::Template(_))), "{printed}");
    }
}

/// Renders messages, `continue_final_message` and other variables.
fn continued(template: &str, variables: &str) -> Result<String, ChatError> {
    ChatTemplates::new(template).render(variables, None)
}

#[test]
fn a_continued_conversation_ends_inside_of_its_last_message() {
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}{{ continue_final_message }}";
    let trimmed = plain.replace("m.content", "m.content | trim");
    let messages = r#""messages": [{"role": "user", "content": "CONTINUE"}, {"role": "assistant", "content": " Sure: \n "}]"#;
    let on = format!("{{{messages}, \"continue_final_message\": true}}");
    assert_eq!(continued(plain, &on).unwrap(), "<user>CONTINUE</user>\n<assistant> Sure: \n ");
    // A template that removes spaces removes them here too.
    assert_eq!(continued(&trimmed, &on).unwrap(), "<user>CONTINUE</user>\n<assistant>Sure:");
    let off = format!("{{{messages}, \"continue_final_message\": false}}");
    assert!(continued(plain, &off).unwrap().ends_with("</assistant>\n"));

    let parts = r#"{"continue_final_message": true, "messages": [{"role": "user", "content":
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]}]}"#;
    let listed = "{% for part in messages[-1].content %}[{{ part.text }}]{% endfor %}";
    assert_eq!(continued(listed, parts).unwrap(), "[a][b");

    let reasoning = r#"{"continue_final_message": "reasoning", "messages": [{"role": "assistant", "content": "no", "reasoning": "Hm"}]}"#;
    let thinking = "{% for m in messages %}({{ m.reasoning_content }}){{ m.content }}{% endfor %}";
    assert_eq!(continued(thinking, reasoning).unwrap(), "(Hm");
    let keys = "{% for m in messages %}{{ m.keys() | list }}{{ m.thinking }}{% endfor %}";
    let given = r#"{"messages": [{"role": "assistant", "reasoning": "Hm"}]}"#;
    assert_eq!(continued(keys, given).unwrap(), "['thinking', 'role', 'reasoning', 'reasoning_content']Hm");
}

#[test]
fn a_message_that_cannot_be_continued_is_refused() {
    let template =
        "{% for m in messages %}{{ m.content if m.role != 'hidden' }}{% endfor %}{{ add_generation_prompt }}";
    let cases = [
        (r#""continue_final_message": true, "messages": []"#, "needs a last message"),
        (r#""continue_final_message": true, "messages": [{"role": "user"}]"#, "has no \"content\""),
        (r#""continue_final_message": true, "messages": [{"content": null}]"#, "has no \"content\""),
        (r#""continue_final_message": true, "messages": [{"content": 3}]"#, "found 3"),
        (
            r#""continue_final_message": true, "messages": [{"content": [{"type": "image"}]}]"#,
            "no text to continue",
        ),
        (r#""continue_final_message": 1, "messages": [{"content": "a"}]"#, "found 1"),
        (r#""continue_final_message": "thought", "messages": [{"thought": "a"}]"#, "does not use"),
        (
            r#""continue_final_message": true, "messages": [{"role": "hidden", "content": "a"}]"#,
            "removes parts",
        ),
        (
            r#""continue_final_message": true, "add_generation_prompt": true, "messages": [{"content": "a"}]"#,
            "add_generation_prompt",
        ),
    ];
    for (variables, expected) in cases {
        let error = continued(template, &format!("{{{variables}}}")).unwrap_err();
        assert!(matches!(error, ChatError::Variables(_)) && error.to_string().contains(expected), "{error}");
    }
}
