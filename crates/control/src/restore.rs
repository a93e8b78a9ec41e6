//! What a restore of storage undoes here (protocol 6.6).

use crate::{Control, ControlError};

impl Control {
    /// Forgets how far the sources are: what their markers vouched for is not stored any more. `complete_until` is unknown until
    /// the markers have been read again. The workers' own progress stays: batch numbers never go back.
    ///
    /// # Errors
    /// What the database says.
    pub async fn forget_source_progress(&self) -> Result<(), ControlError> {
        self.within(async {
            sqlx::query("DELETE FROM source_progress").execute(self.pool()).await?;
            Ok(())
        })
        .await
    }
}
