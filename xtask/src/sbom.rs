//! The bill of materials of a distribution, in the CycloneDX format.

use serde_json::{Value, json};

use crate::metadata::Package;

/// The document for these packages.
pub fn document(version: &str, packages: &[Package]) -> Value {
    let reference = |name: &str, version: &str| format!("pkg:cargo/{name}@{version}");
    let components: Vec<Value> = packages
        .iter()
        .map(|package| {
            let purl = reference(&package.name, &package.version);
            let mut component = json!({
                "type": "library",
                "bom-ref": purl,
                "name": package.name,
                "version": package.version,
                "purl": purl,
                "licenses": [{ "expression": package.license }],
            });
            if let Some(checksum) = &package.checksum {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
            }
            component
        })
        .collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": reference("layerzero", version),
                "name": "layerzero",
                "version": version,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": components,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_have_their_license_and_checksum() {
        let package = Package {
            name: "half".to_owned(),
            version: "2.7.0".to_owned(),
            license: "MIT OR Apache-2.0".to_owned(),
            checksum: Some("ab12".to_owned()),
            folder: "/".into(),
        };
        let document = document("0.1.0", &[package]);
        let component = &document["components"][0];
        assert_eq!(component["purl"], "pkg:cargo/half@2.7.0");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["hashes"][0]["content"], "ab12");
    }
}
