//! A worker on a broker that asks everybody who he is: users, certificates and rights by the commands of docs/kafka-security.md.

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord};
use support::{Message, Pipeline, Process, Servers, Totals, logs};
use usage_devstack::{Guard, Kafka, ports};

const DOCUMENT: &str = include_str!("../../docs/kafka-security.md");
const WITHIN: Duration = Duration::from_secs(300);

/// The commands of a part of the document.
fn commands(part: &str) -> Vec<&'static str> {
    let (_, rest) = DOCUMENT.split_once(&format!("<!-- {part} -->\n```sh\n")).expect("the part is there");
    let commands: Vec<_> = rest.split_once("```").expect("it ends").0.lines().collect();
    assert!(!commands.is_empty(), "{part}");
    commands
}

fn succeeded(mut command: Command) {
    let output = command.output().expect("it runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // The tools end with 0 also when the broker refused.
    assert!(output.status.success() && !text.contains("Error"), "{command:?}: {text}");
}

/// Certificates as the document makes them.
fn make_certificates(dir: &Path) {
    std::fs::write(dir.join("broker.ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    for line in commands("certificates") {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).current_dir(dir);
        succeeded(command);
    }
    let broker = ["broker.key", "broker.crt"].map(|file| std::fs::read_to_string(dir.join(file)).unwrap());
    std::fs::write(dir.join("broker.pem"), broker.concat()).unwrap();
}

/// A broker with the document's users and rights on the topics and the group of one test.
struct Guarded {
    kafka: Kafka,
    guard: Guard,
    dir: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        make_certificates(dir.path());
        let (keystore, truststore) = (dir.path().join("broker.pem"), dir.path().join("ca.pem"));
        let [sasl, tls] = [(); 2].map(|()| ports::free().unwrap());
        let guard = Guard { sasl, tls, keystore, truststore };
        let kafka = Kafka::start_guarded(&dir.path().join("kafka"), &guard).unwrap();
        let this = Self { kafka, guard, dir };
        // At a cluster's birth the formatting tool makes this user.
        let admin = "--bootstrap-server $BROKERS --alter --entity-type users --entity-name admin \
                     --add-config SCRAM-SHA-512=[password=of-admin]";
        this.tool(&format!("kafka-configs {admin}").replace("$BROKERS", &this.kafka.brokers()));
        let properties = "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n\
            sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=\"admin\" password=\"of-admin\";\n\
            ssl.truststore.type=PEM\nssl.truststore.location=ca.pem\n";
        std::fs::write(this.dir.path().join("admin.properties"), properties).unwrap();
        this
    }

    fn sasl(&self) -> String {
        format!("127.0.0.1:{}", self.guard.sasl)
    }

    /// Runs a line of the document.
    fn tool(&self, line: &str) {
        let mut words = line.split_whitespace();
        let class = match words.next() {
            Some("kafka-configs") => "kafka.admin.ConfigCommand",
            Some("kafka-acls") => "org.apache.kafka.tools.AclCommand",
            other => panic!("{other:?} is no tool"),
        };
        let mut command = usage_devstack::testing::kafka_tool(class).unwrap();
        command.args(words).current_dir(self.dir.path());
        succeeded(command);
    }

    /// Gives users and rights on a pipeline's topics.
    fn admit(&self, pipeline: &Pipeline) {
        for line in commands("users").into_iter().chain(commands("rights")) {
            let line = line
                .replace("$BROKERS", &self.sasl())
                .replace("$RELAY_PASSWORD", "of-relay")
                .replace("$CONSUMER_PASSWORD", "of-consumer")
                .replace("$OPERATOR_PASSWORD", "of-operator")
                .replace("--topic usage.records.v1", &format!("--topic {}", pipeline.topic))
                .replace("--topic usage.dead-letters.v1", &format!("--topic {}", pipeline.dead_letters))
                .replace("--group usage-consumer", &format!("--group {}", pipeline.group));
            self.tool(&line);
        }
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    /// What a process is told to come as this user, by password.
    fn as_user(&self, user: &str, password: &str) -> Vec<String> {
        vec![
            format!("kafka.brokers={}", self.sasl()),
            "kafka.security.protocol=sasl_ssl".into(),
            "kafka.security.sasl_mechanism=SCRAM-SHA-512".into(),
            format!("kafka.security.sasl_username={user}"),
            format!("kafka.security.sasl_password={password}"),
            format!("kafka.ca_file={}", self.file("ca.pem")),
        ]
    }

    /// By the certificate of that name, or without one.
    fn by_certificate(&self, name: Option<&str>) -> Vec<String> {
        let mut settings = vec![
            format!("kafka.brokers=127.0.0.1:{}", self.guard.tls),
            "kafka.security.protocol=ssl".into(),
            format!("kafka.ca_file={}", self.file("ca.pem")),
        ];
        if let Some(name) = name {
            settings.push(format!("kafka.client_certificate={}", self.file(&format!("{name}.crt"))));
            settings.push(format!("kafka.client_key={}", self.file(&format!("{name}.key"))));
        }
        settings
    }
}

/// A client of the product's own options.
fn client(pipeline: &Pipeline, settings: &[String]) -> ClientConfig {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let mut client = ClientConfig::new();
    client.extend(
        pipeline
            .config(&settings)
            .kafka
            .client_properties()
            .into_iter()
            .map(|(name, value)| (name.into(), value)),
    );
    client.set("delivery.timeout.ms", "20000").set("message.timeout.ms", "20000");
    client
}

/// Sends one message as whoever the settings say; the code of the refusal.
async fn send(
    pipeline: &Pipeline,
    settings: &[String],
    topic: &str,
    message: &Message,
) -> Result<(), RDKafkaErrorCode> {
    let mut client = client(pipeline, settings);
    // As the relay sends.
    client.set("acks", "all").set("enable.idempotence", "true");
    let producer: FutureProducer = client.create().unwrap();
    let headers = message.headers.iter().fold(rdkafka::message::OwnedHeaders::new(), |all, (key, value)| {
        all.insert(rdkafka::message::Header { key, value: Some(value) })
    });
    let (key, value) = (message.key.clone().unwrap(), message.value.clone().unwrap());
    let record =
        FutureRecord::to(topic).partition(message.partition).key(&key).payload(&value).headers(headers);
    match producer.send(record, WITHIN).await {
        Ok(_) => Ok(()),
        Err((error, _)) => Err(error.rdkafka_error_code().expect("the broker's or the client's code")),
    }
}

/// Whether somebody may read the topic: the code of the refusal.
fn read(pipeline: &Pipeline, settings: &[String], topic: &str) -> Option<RDKafkaErrorCode> {
    let mut client = client(pipeline, settings);
    let consumer: BaseConsumer =
        client.set("group.id", "nobody").set("auto.offset.reset", "earliest").create().unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition_offset(topic, 0, rdkafka::Offset::Offset(0)).unwrap();
    consumer.assign(&list).unwrap();
    let deadline = Instant::now() + WITHIN;
    loop {
        assert!(Instant::now() < deadline, "neither a message nor a refusal");
        match consumer.poll(Duration::from_secs(1)) {
            // The group is nobody's; what is asked is whether the topic can be read.
            Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::GroupAuthorizationFailed))) | None => {}
            Some(Err(KafkaError::MessageConsumption(code))) => return Some(code),
            Some(Err(error)) => panic!("{error}"),
            Some(Ok(_)) => return None,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_user_may_do_what_the_document_says_and_nothing_else() {
    logs();
    let guarded = Guarded::start();
    // The test's own hands are the broker's.
    let servers = Servers { brokers: guarded.kafka.brokers(), ..Servers::shared() };
    let pipeline = Pipeline::on(&servers, 1).await;
    guarded.admit(&pipeline);
    let consumer = guarded.as_user("usage-consumer", "of-consumer");
    let relay = guarded.as_user("usage-relay", "of-relay");
    let settings: Vec<&str> = consumer.iter().map(String::as_str).collect();
    let worker = Process::start(&pipeline, &settings);

    let tenant = pipeline.tenant_of(0);
    let good = |key: &str| pipeline.message(&pipeline.record(tenant, key, 1));
    let mut poison = good("poison");
    poison.value = Some(vec![0xff; 40]);
    let (topic, letters) = (pipeline.topic.clone(), pipeline.dead_letters.clone());
    assert_eq!(send(&pipeline, &relay, &topic, &good("a")).await, Ok(()));
    assert_eq!(send(&pipeline, &relay, &topic, &poison).await, Ok(()));
    assert_eq!(send(&pipeline, &guarded.by_certificate(Some("relay")), &topic, &good("b")).await, Ok(()));
    pipeline.settled().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(2, 2));
    assert_eq!(pipeline.dead_letters().await.len(), 1);

    let refused = RDKafkaErrorCode::TopicAuthorizationFailed;
    assert_eq!(
        send(&pipeline, &relay, &letters, &good("c")).await,
        Err(refused),
        "only the consumer writes letters"
    );
    let by_certificate = guarded.by_certificate(Some("relay"));
    assert_eq!(send(&pipeline, &by_certificate, &letters, &good("c")).await, Err(refused));
    assert_eq!(read(&pipeline, &relay, &topic), Some(refused), "a relay reads nothing");
    assert_eq!(read(&pipeline, &consumer, &letters), Some(refused), "a worker reads no letters");
    let operator = guarded.as_user("usage-operator", "of-operator");
    assert_eq!(read(&pipeline, &operator, &letters), None);
    // Whom the broker does not know: a wrong password, no certificate, no password at all.
    let nobody = [
        guarded.as_user("usage-relay", "of-somebody"),
        guarded.by_certificate(None),
        vec![format!("kafka.brokers={}", guarded.sasl())],
    ];
    // Side by side: each is tried until its time is over.
    let message = good("d");
    let refusals = nobody.iter().map(|settings| send(&pipeline, settings, &topic, &message));
    for refusal in join_all(refusals).await {
        refusal.unwrap_err();
    }
    pipeline.settled().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(2, 2));
    assert!(!worker.log_contains("of-consumer"), "a password is in the log");
    worker.stop().await;
    pipeline.end().await;
    guarded.kafka.stop().unwrap();
}
