import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** Writes the data of a server below whose node (args[1]) as many sequential nodes were made as args[2] says. */
public class Worn {
    public static void main(String[] args) throws Exception {
        DataTree tree = new DataTree();
        String path = "";
        long zxid = 1;
        for (String part : args[1].substring(1).split("/")) {
            path += "/" + part;
            tree.createNode(path, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, 0, -1, zxid++, 0);
        }
        tree.createNode(path + "/last", new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, 0, Integer.parseInt(args[2]), zxid++, 0);
        tree.deleteNode(path + "/last", zxid++);
        tree.lastProcessedZxid = zxid;
        File data = new File(args[0]);
        new FileTxnSnapLog(data, data).save(tree, new ConcurrentHashMap<>(), false);
    }
}
