use usage_service::config;

use super::*;

#[test]
fn the_declaration_is_right() {
    config::verify(SETTINGS).unwrap();
}
