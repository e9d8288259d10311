import java.util.Scanner;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/** ZooKeeper's own lock recipe: hosts, path and session timeout (ms); its standard input has the lines lock, unlock. */
public class Recipe {
    public static void main(String[] args) throws Exception {
        ZooKeeper zk = new ZooKeeper(args[0], Integer.parseInt(args[2]), event -> { });
        WriteLock lock = new WriteLock(zk, args[1], ZooDefs.Ids.OPEN_ACL_UNSAFE, new LockListener() {
            public void lockAcquired() { System.out.println("acquired"); }
            public void lockReleased() { System.out.println("released"); }
        });
        Scanner orders = new Scanner(System.in);
        while (orders.hasNext()) {
            if (orders.next().equals("lock")) {
                lock.lock();
                System.out.println("asked");
            } else {
                lock.unlock();
            }
        }
        zk.close();
    }
}
