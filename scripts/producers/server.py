"""Servers that are started by a program: werkzeug, tornado, aiohttp and django; server.py NAME PORT."""
import asyncio
import logging
import os
import sys

from app import wsgi

name, port = sys.argv[1], int(sys.argv[2])
host = os.environ.get("HOST", "127.0.0.1")


def werkzeug():
    from werkzeug.serving import run_simple
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
    run_simple(host, port, wsgi, threaded=True)


def django():
    from django.core.servers.basehttp import WSGIRequestHandler, WSGIServer, run
    logger = logging.getLogger("django.server")
    from django.utils.log import ServerFormatter
    handler = logging.StreamHandler(sys.stdout)
    from django.conf import settings
    settings.configure()
    handler.setFormatter(ServerFormatter("[{server_time}] {message}", style="{"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    run(host, port, wsgi, ipv6=":" in host, threading=True)


def tornado():
    import tornado.ioloop
    import tornado.log
    import tornado.web

    class Hello(tornado.web.RequestHandler):
        async def get(self, *_):
            if self.request.path == "/slow":
                await asyncio.sleep(5)
            self.write("hello")

        post = get

        def check_xsrf_cookie(self):
            pass

    tornado.log.enable_pretty_logging()

    async def serve():
        tornado.web.Application([(r"/.*", Hello)]).listen(port, host)
        await asyncio.Event().wait()

    asyncio.run(serve())


def aiohttp():
    from aiohttp import web
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)

    async def hello(request):
        if request.path == "/slow":
            await asyncio.sleep(5)
        return web.Response(text="hello")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", hello)
    web.run_app(application, host=host, port=port, print=None)


{"werkzeug": werkzeug, "django": django, "tornado": tornado, "aiohttp": aiohttp}[name]()
