//! A topic's id: a topic that is deleted and made anew has the same name and another id, and its offsets mean other rows.

use std::ffi::{CString, c_char};
use std::ptr;
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use uuid::Uuid;

/// The id of a topic; `None` if the brokers are too old to have any.
///
/// # Errors
/// No answer within `within`, or the topic does not exist.
pub fn topic_id<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    within: Duration,
) -> KafkaResult<Option<Uuid>> {
    let invalid = |_| KafkaError::MetadataFetch(RDKafkaErrorCode::InvalidTopic);
    let topic = CString::new(topic).map_err(invalid)?;
    let (most, least) = describe(client, &topic, i32::try_from(within.as_millis()).unwrap_or(i32::MAX))
        .map_err(|code| KafkaError::MetadataFetch(code.into()))?;
    let id = Uuid::from_u64_pair(most.cast_unsigned(), least.cast_unsigned());
    Ok((!id.is_nil()).then_some(id))
}

/// The two halves of the id, by the description of the topic: rdkafka's own interface has none of it.
#[expect(unsafe_code, reason = "librdkafka's C interface")]
fn describe<C: ClientContext>(
    client: &Client<C>,
    topic: &CString,
    within_ms: i32,
) -> Result<(i64, i64), RDKafkaRespErr> {
    use RDKafkaRespErr::{RD_KAFKA_RESP_ERR__TIMED_OUT as TIMED_OUT, RD_KAFKA_RESP_ERR_NO_ERROR as NO_ERROR};
    let admin = client.native_ptr();
    // SAFETY: `admin` lives as long as `client`. What is made here is destroyed here, the event last but for its queue: result,
    // description and id point into it. The collection copies the name.
    unsafe {
        let queue = c::rd_kafka_queue_new(admin);
        let mut names: [*const c_char; 1] = [topic.as_ptr()];
        let topics = c::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let operation = c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = c::rd_kafka_AdminOptions_new(admin, operation);
        c::rd_kafka_AdminOptions_set_request_timeout(options, within_ms, ptr::null_mut(), 0);
        c::rd_kafka_DescribeTopics(admin, topics, options, queue);
        c::rd_kafka_AdminOptions_destroy(options);
        c::rd_kafka_TopicCollection_destroy(topics);
        let event = c::rd_kafka_queue_poll(queue, within_ms);
        let found = if event.is_null() { Err(TIMED_OUT) } else { read(event, NO_ERROR) };
        if !event.is_null() {
            c::rd_kafka_event_destroy(event);
        }
        c::rd_kafka_queue_destroy(queue);
        found
    }
}

/// # Safety
/// `event` is the answer to a description of one topic.
#[expect(unsafe_code, reason = "librdkafka's C interface")]
unsafe fn read(
    event: *mut c::rd_kafka_event_t,
    no_error: RDKafkaRespErr,
) -> Result<(i64, i64), RDKafkaRespErr> {
    // SAFETY: null pointers are looked for before they are used; an error without a code is none.
    unsafe {
        let error = c::rd_kafka_event_error(event);
        if error != no_error {
            return Err(error);
        }
        let missing = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        let result = c::rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return Err(missing);
        }
        let mut count = 0;
        let topics = c::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if count == 0 || topics.is_null() {
            return Err(missing);
        }
        let description = *topics;
        let error = c::rd_kafka_error_code(c::rd_kafka_TopicDescription_error(description));
        if error != no_error {
            return Err(error);
        }
        let id = c::rd_kafka_TopicDescription_topic_id(description);
        if id.is_null() {
            return Ok((0, 0));
        }
        Ok((c::rd_kafka_Uuid_most_significant_bits(id), c::rd_kafka_Uuid_least_significant_bits(id)))
    }
}
