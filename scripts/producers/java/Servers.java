import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/** Servers on the JVM: Servers NAME PORT LOG. */
public class Servers {
    static void pause(String path) {
        if (path.equals("/slow")) {
            try {
                Thread.sleep(5000);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        Path log = Path.of(arguments[2]);
        switch (arguments[0]) {
            case "tomcat" -> tomcat(port, log);
            case "jetty" -> jetty(port, log);
            case "undertow" -> undertow(port, log);
            default -> netty(port, log);
        }
        Thread.currentThread().join();
    }

    static void tomcat(int port, Path log) throws Exception {
        var tomcat = new org.apache.catalina.startup.Tomcat();
        tomcat.setBaseDir(log.getParent().toString());
        var connector = new org.apache.catalina.connector.Connector();
        connector.setPort(port);
        connector.setProperty("relaxedPathChars", "[]");
        tomcat.setConnector(connector);
        var context = tomcat.addContext("", null);
        var servlet = new jakarta.servlet.http.HttpServlet() {
            @Override
            protected void service(jakarta.servlet.http.HttpServletRequest request, jakarta.servlet.http.HttpServletResponse response)
                    throws java.io.IOException {
                pause(request.getRequestURI());
                response.getOutputStream().write("hello".getBytes(StandardCharsets.UTF_8));
            }
        };
        org.apache.catalina.startup.Tomcat.addServlet(context, "hello", servlet);
        context.addServletMappingDecoded("/", "hello");
        var valve = new org.apache.catalina.valves.AccessLogValve();
        valve.setDirectory(log.getParent().toString());
        valve.setPrefix("access");
        valve.setSuffix(".log");
        valve.setRotatable(false);
        valve.setBuffered(false);
        valve.setPattern("combined");
        tomcat.getHost().getPipeline().addValve(valve);
        tomcat.start();
    }

    static void jetty(int port, Path log) throws Exception {
        var server = new org.eclipse.jetty.server.Server();
        var configuration = new org.eclipse.jetty.server.HttpConfiguration();
        configuration.setUriCompliance(org.eclipse.jetty.http.UriCompliance.UNSAFE);
        var connector = new org.eclipse.jetty.server.ServerConnector(server,
                new org.eclipse.jetty.server.HttpConnectionFactory(configuration));
        connector.setPort(port);
        server.addConnector(connector);
        server.setRequestLog(new org.eclipse.jetty.server.CustomRequestLog(log.toString()));
        server.setHandler(new org.eclipse.jetty.server.Handler.Abstract() {
            @Override
            public boolean handle(org.eclipse.jetty.server.Request request, org.eclipse.jetty.server.Response response,
                    org.eclipse.jetty.util.Callback callback) {
                pause(request.getHttpURI().getPath());
                response.write(true, StandardCharsets.UTF_8.encode("hello"), callback);
                return true;
            }
        });
        server.start();
    }

    static void undertow(int port, Path log) throws Exception {
        io.undertow.server.HttpHandler hello = exchange -> {
            pause(exchange.getRequestPath());
            exchange.getResponseSender().send("hello");
        };
        var out = new java.io.PrintWriter(java.nio.file.Files.newBufferedWriter(log), true);
        var logged = new io.undertow.server.handlers.accesslog.AccessLogHandler(
                new io.undertow.server.handlers.BlockingHandler(hello), line -> {
                    synchronized (out) {
                        out.println(line);
                    }
                }, "combined", Servers.class.getClassLoader());
        io.undertow.Undertow.builder().addHttpListener(port, "::", logged)
                .setServerOption(io.undertow.UndertowOptions.ALLOW_UNESCAPED_CHARACTERS_IN_URL, true).build().start();
    }

    static void netty(int port, Path log) throws Exception {
        var out = new java.io.PrintWriter(java.nio.file.Files.newBufferedWriter(log), true);
        System.setProperty("reactor.netty.http.server.accessLogEnabled", "true");
        var logger = (ch.qos.logback.classic.Logger) org.slf4j.LoggerFactory.getLogger("reactor.netty.http.server.AccessLog");
        var appender = new ch.qos.logback.core.AppenderBase<ch.qos.logback.classic.spi.ILoggingEvent>() {
            @Override
            protected void append(ch.qos.logback.classic.spi.ILoggingEvent event) {
                synchronized (out) {
                    out.println(event.getFormattedMessage());
                }
            }
        };
        appender.start();
        logger.addAppender(appender);
        reactor.netty.http.server.HttpServer.create().host("::").port(port)
                .handle((request, response) -> {
                    var answer = response.sendString(reactor.core.publisher.Mono.just("hello"));
                    return request.uri().equals("/slow")
                            ? reactor.core.publisher.Mono.delay(java.time.Duration.ofSeconds(5)).thenMany(answer) : answer;
                })
                .bindNow();
    }
}
