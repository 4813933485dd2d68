varnishd -F -n $DIR/varnish -a 127.0.0.1:$PORT -a [::1]:$PORT -f $DIR/default.vcl -s malloc,10M &
sleep 1
until varnishadm -n $DIR/varnish status >/dev/null 2>&1; do sleep 0.1; done
varnishncsa -n $DIR/varnish -w $DIR/access.log &
until [ -e $DIR/access.log ]; do sleep 0.1; done
sleep 1
touch $DIR/ready
wait
