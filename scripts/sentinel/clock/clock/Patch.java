package clock;

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Map;
import java.util.zip.ZipFile;

/**
 * {@code Patch DIRECTORY JAR CLASS [JAR CLASS]...} copies classes into the directory. What they call to sleep and to read the clock of
 * nanoseconds is then {@link Sleep}; nothing else differs.
 */
public final class Patch {
    private static final Map<String, String> OTHERS = Map.of(
            "java/lang/Thread", "clock/Sleep",
            "java/lang/System", "clock/Sleep",
            "java/util/concurrent/locks/LockSupport", "clock/Sleep",
            "java/util/concurrent/TimeUnit", "clock/Unit",
            "Ljava/util/concurrent/TimeUnit;", "Lclock/Unit;");

    public static void main(String[] arguments) throws Exception {
        for (int at = 1; at < arguments.length; at += 2) {
            String name = arguments[at + 1] + ".class";
            Path path = Paths.get(arguments[0], name);
            Files.createDirectories(path.getParent());
            try (ZipFile jar = new ZipFile(arguments[at])) {
                Files.write(path, changed(new DataInputStream(jar.getInputStream(jar.getEntry(name)))));
            }
        }
    }

    /** The names stand in the constant pool, at the beginning. */
    private static byte[] changed(DataInputStream in) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeLong(in.readLong());
        int count = in.readUnsignedShort();
        out.writeShort(count);
        for (int entry = 1; entry < count; entry++) {
            int tag = in.readUnsignedByte();
            out.writeByte(tag);
            switch (tag) {
                case 1:
                    String text = in.readUTF();
                    out.writeUTF(OTHERS.getOrDefault(text, text));
                    break;
                case 5:
                case 6:
                    out.writeLong(in.readLong());
                    entry++;
                    break;
                case 15:
                    out.write(in.readNBytes(3));
                    break;
                case 7:
                case 8:
                case 16:
                case 19:
                case 20:
                    out.writeShort(in.readShort());
                    break;
                default:
                    out.writeInt(in.readInt());
            }
        }
        out.write(in.readAllBytes());
        return bytes.toByteArray();
    }
}
