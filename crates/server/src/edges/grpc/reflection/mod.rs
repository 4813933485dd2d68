//! `grpc.reflection`, v1 and v1alpha: programs such as grpcurl learn the services and their messages from the server.
//!
//! The generated types come without descriptors, and a build needs no `protoc`, so [`schema`] has the messages as tables. A test
//! holds them to the generated types.

mod schema;

use std::{convert::Infallible, pin::Pin};

use axum::http::{Request, Response};
use hyper::body::Incoming;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use tonic::{body::Body, codegen::Service};
use tonic_reflection::server::Builder;

use self::schema::{Enum, FILES, Field, File, Kind, Message};
use super::messages::Messages;

/// A service whose type does not matter.
type Erased = Box<dyn Fn(Request<Messages<Incoming>>) -> Answer + Send + Sync>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Both versions of the service.
pub(super) struct Reflection {
    services: [(&'static str, Erased); 2],
}

impl Reflection {
    pub fn new() -> Self {
        let builder = || {
            Builder::configure()
                .register_file_descriptor_set(files())
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let v1 = builder().build_v1().expect("a test builds the same");
        let v1alpha = builder().build_v1alpha().expect("a test builds the same");
        Self {
            services: [
                ("grpc.reflection.v1.ServerReflection", erased(v1)),
                ("grpc.reflection.v1alpha.ServerReflection", erased(v1alpha)),
            ],
        }
    }

    /// The service of this name.
    pub fn service(&self, name: &str) -> Option<&Erased> {
        self.services.iter().find(|(known, _)| *known == name).map(|(_, service)| service)
    }
}

fn erased<S>(service: S) -> Erased
where
    S: Service<Request<Messages<Incoming>>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move { service.call(request).await })
    })
}

/// The files of [`FILES`], as protoc describes them.
fn files() -> FileDescriptorSet {
    FileDescriptorSet { file: FILES.iter().map(file).collect() }
}

fn file(file: &File) -> FileDescriptorProto {
    let service = file.service.map(|(name, method, input, output, streams)| ServiceDescriptorProto {
        name: Some(name.to_owned()),
        method: vec![MethodDescriptorProto {
            name: Some(method.to_owned()),
            input_type: Some(input.to_owned()),
            output_type: Some(output.to_owned()),
            client_streaming: Some(streams),
            server_streaming: Some(streams),
            options: None,
        }],
        options: None,
    });
    FileDescriptorProto {
        name: Some(file.path.to_owned()),
        package: Some(file.package.to_owned()),
        dependency: file.imports.iter().map(|&path| path.to_owned()).collect(),
        message_type: file.messages.iter().map(message).collect(),
        enum_type: file.enums.iter().map(enumeration).collect(),
        service: service.into_iter().collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn message(message: &Message) -> DescriptorProto {
    DescriptorProto {
        name: Some(message.name.to_owned()),
        field: message.fields.iter().map(field).collect(),
        nested_type: message.messages.iter().map(self::message).collect(),
        enum_type: message.enums.iter().map(enumeration).collect(),
        oneof_decl: message
            .one_of
            .map(|name| OneofDescriptorProto { name: Some(name.to_owned()), options: None })
            .into_iter()
            .collect(),
        options: message
            .is_map_entry
            .then(|| MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..DescriptorProto::default()
    }
}

fn field(&(name, number, kind): &Field) -> FieldDescriptorProto {
    let (label, of_one, kind) = match kind {
        Kind::Many(name) => (Label::Repeated, false, Kind::Of(name)),
        Kind::OneOf(kind) => (Label::Optional, true, *kind),
        kind => (Label::Optional, false, kind),
    };
    let (r#type, type_name) = match kind {
        Kind::Text => (Type::String, None),
        Kind::Bytes => (Type::Bytes, None),
        Kind::Bool => (Type::Bool, None),
        Kind::Double => (Type::Double, None),
        Kind::U32 => (Type::Uint32, None),
        Kind::U64 => (Type::Uint64, None),
        Kind::I32 => (Type::Int32, None),
        Kind::I64 => (Type::Int64, None),
        Kind::Enum(name) => (Type::Enum, Some(name)),
        Kind::Of(name) | Kind::Many(name) => (Type::Message, Some(name)),
        Kind::OneOf(_) => unreachable!("it does not nest"),
    };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(r#type.into()),
        type_name: type_name.map(str::to_owned),
        oneof_index: of_one.then_some(0),
        ..FieldDescriptorProto::default()
    }
}

fn enumeration(&(name, values): &Enum) -> EnumDescriptorProto {
    let value = |&(name, number): &(&str, i32)| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        options: None,
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.iter().map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

#[cfg(test)]
mod tests;
